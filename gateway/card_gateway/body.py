"""The bodies of completions and chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from card_client import GenerateRequest
from card_gateway.errors import refused
from card_gateway.limits import (
    MOST_ALTERNATIVES,
    MOST_ANSWERS,
    MOST_FIELDS,
    MOST_MESSAGES,
    MOST_PROMPT_TOKENS,
    MOST_TOKENS,
    NOT_OFFERED,
    OF_COMPLETIONS,
    TOOLS,
    AtMost,
    Few,
    Tools,
)
from card_gateway.messages import Message
from card_gateway.sampling import SamplingBody, Text, TokenId
from card_gateway.structured import Guide
from card_gateway.tools.definitions import Tool, ToolChoice, ToolUse, tool_use
from card_gateway.tools.written import calls_or_json_grammar, grammar_of

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, for a completion that names no limit; a chat then has the server's own."""

_TokenIds = Annotated[list[TokenId], Field(min_length=1), AtMost(MOST_PROMPT_TOKENS)]


class CompletionBody(SamplingBody):
    """`POST /v1/completions`."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NOT_OFFERED, **TOOLS}

    prompt: Text | Few[list[Text]] | _TokenIds | Few[list[_TokenIds]]
    max_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | Literal[False] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompletionBody:
        self._check_stream_options()
        if not self.prompts:
            raise refused("prompt", "prompt holds nothing; send at least one text")
        self._check_amount(len(self.prompts), DEFAULT_COMPLETION_TOKENS)
        if self.max_tokens == 0 and not self.echo:
            raise refused("max_tokens", "max_tokens is 0; it must be at least 1, or echo be true")
        if self.candidates < self.answers:
            raise refused("best_of", f"best_of is {self.best_of}; it must be at least n")
        if self.candidates > self.answers and self.stream:
            raise refused("best_of", "best_of chooses among whole texts; it must be n in a stream")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each as text or as tokens."""
        found: list[Any] = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        return [found] if found and isinstance(found[0], int) else found

    @property
    def candidates(self) -> int:
        return self.best_of or self.answers

    @property
    def wants_log_probs(self) -> bool:
        return self.logprobs is not None and self.logprobs is not False

    @property
    def alternatives(self) -> int:
        return self.logprobs or 0

    def generate_requests(self) -> list[GenerateRequest]:
        """One for each prompt. What they share is made and held once: a guide may have a MiB."""
        first, *others = self.prompts
        request = self.generate_request(first)
        further = (
            replace(request, text_input=prompt)
            if isinstance(prompt, str)
            else replace(request, input_ids=prompt)
            for prompt in others
        )
        return [request, *further]

    def generate_request(self, prompt: str | list[int]) -> GenerateRequest:
        limit = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        request = self.to_triton(prompt, max_tokens=max(limit, 1))
        return replace(
            request,
            # `best_of` compares by them.
            return_log_probs=self.wants_log_probs or self.candidates > self.answers,
            return_prompt_log_probs=bool(self.echo) and self.wants_log_probs,
        )


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NOT_OFFERED, **OF_COMPLETIONS}

    messages: Annotated[list[Message], Field(min_length=1), AtMost(MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    chat_template_kwargs: Annotated[dict[str, JsonValue], AtMost(MOST_FIELDS)] | None = None
    """Further variables of the chat template."""
    reasoning_effort: str | None = None
    """A variable of the chat template, too."""
    tools: Tools[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        self._check_stream_options()
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        self._check_amount(1, absent=MOST_TOKENS // MOST_ANSWERS)
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_log_probs(self) -> bool:
        return self.logprobs is True

    @property
    def alternatives(self) -> int:
        return self.top_logprobs or 0

    @cached_property
    def tool_use(self) -> ToolUse:
        """The tools that the model sees. Raises `ApiError`."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def ends_with_a_call(self) -> bool:
        """A grammar ends the text itself."""
        use = self.tool_use
        return bool(use.tools) and not use.parallel and self.guide is None

    @property
    def template_variables(self) -> dict[str, JsonValue]:
        """Variables of the chat template besides messages and tools."""
        given = self.chat_template_kwargs or {}
        if self.reasoning_effort is None:
            return given
        return {"reasoning_effort": self.reasoning_effort, **given}

    def generate_request(self, prompt: str, stop_words: tuple[str, ...]) -> GenerateRequest:
        return self.to_triton(prompt, max_tokens=self.token_limit, stop_words=stop_words)

    @cached_property
    def guide(self) -> Guide | None:
        """The guide of the calls, or of the answer as text."""
        return self.guide_of_tools or super().guide

    @cached_property
    def guide_of_tools(self) -> Guide | None:
        """The guide of calls, if one is required or a tool is strict, or of calls and JSON."""
        use, guide = self.tool_use, super().guide
        if use.required or guide is None:
            grammar = grammar_of(use)
            return None if grammar is None else Guide("ebnf_grammar", grammar, "tools")
        if not use.tools or guide.kind != "json_schema":
            return None
        return Guide("ebnf_grammar", calls_or_json_grammar(use, guide.text), guide.field)
