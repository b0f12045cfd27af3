"""What a request may say, and what becomes of it on Triton's wire.

The fields are OpenAI's, plus those that TensorRT-LLM's and vLLM's servers and `genai-perf` added to
them. What is not offered is refused by name, unless its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from card_client import GenerateRequest
from card_gateway.errors import refused
from card_gateway.messages import Message, Part, TextPart, text_of
from card_gateway.neutral import without_what_asks_for_nothing
from card_gateway.structured import Guide, GuidedFields, NvExt
from card_gateway.tools.definitions import Tool, ToolChoice, ToolUse, tool_use
from card_gateway.tools.grammar import calls_or_json_grammar, grammar_of

NOT_OFFERED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI's API that nothing here can do, each with the values that ask for nothing."""

OF_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    # A chat's template writes them, and none is written twice.
    "add_special_tokens": (True, False),
}
"""Those that a chat does not have."""

MOST_ANSWERS = 128
"""Texts that one request may ask for of each prompt."""
MOST_TEXTS = 1024
"""Texts that one request may have generated in all."""
MOST_ALTERNATIVES = 20
"""Likeliest tokens that may be asked for at each position, as at OpenAI."""

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, for a completion that names no limit; a chat then has the server's own."""

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; Triton's wire means greedy by an absent temperature."""


_Text = Annotated[str, Field(min_length=1)]
_TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
_TokenIds = Annotated[list[_TokenId], Field(min_length=1)]


_AS_SENT = (
    *("top_p", "min_p", "presence_penalty", "frequency_penalty", "min_tokens", "bad_words"),
    *("stop_token_ids", "return_trace", "decoding", "drafter", "forbidden_drafter", "growth"),
    *("acceptance", "cache_salt"),
)
"""Fields that Triton has under the same name."""

TOOLS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
"""Those that only a chat has."""


class StreamOptions(Part):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Whether every chunk tells the usage so far."""
    include_obfuscation: bool | None = None
    """Accepted, without effect."""


class Prediction(Part):
    """What the client expects to be written."""

    type: Literal["content"]
    content: str | list[TextPart]


class SamplingBody(GuidedFields):
    """What completions and chats have in common."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = NOT_OFFERED

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Who asks and what for: accepted, without effect.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    prediction: Prediction | None = None
    """What the text may well say. It makes candidates, so it changes speed alone."""
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    # Beyond OpenAI's API.
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    length_penalty: float | None = None
    """Accepted, without effect: it ranks beams."""
    stop_token_ids: list[_TokenId] | None = None
    bad_words: list[str] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    ignore_eos: bool | None = None
    decoding: str | None = None
    drafter: str | None = None
    forbidden_drafter: str | None = None
    growth: str | None = None
    acceptance: str | None = None
    cache_salt: _Text | None = None
    skip_reading_prefix_cache: bool | None = None
    cache_prompt: bool | None = None
    """The opposite, as llama.cpp names it."""
    return_trace: bool | None = None
    """Whether every event of a stream tells what speculation did."""

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_offered(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return without_what_asks_for_nothing(body, cls.model_fields, cls.not_offered)

    @property
    def include_usage(self) -> bool:
        """Whether the end of a stream tells the usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def continuous_usage(self) -> bool:
        """Whether every event of a stream tells the usage so far."""
        return self.stream_options is not None and (
            self.stream_options.continuous_usage_stats is True
        )

    @property
    def answers(self) -> int:
        """Texts that are told of each prompt."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Texts that are generated for each prompt."""
        return self.answers

    @property
    def is_prompt_alone(self) -> bool:
        """Whether nothing of what is generated is told: a completion may ask for that."""
        return self.max_tokens == 0

    @property
    def tool_use(self) -> ToolUse:
        """Only a chat has tools."""
        return ToolUse()

    @property
    def ends_with_a_call(self) -> bool:
        """Whether each text ends where a function is called: a chat may ask for that."""
        return False

    @property
    def wants_log_probs(self) -> bool:
        raise NotImplementedError

    @property
    def alternatives(self) -> int:
        """Likeliest tokens that are told at each position."""
        raise NotImplementedError

    @property
    def effective_temperature(self) -> float:
        """What Triton is asked for: `nvext` may want greedy decoding, and absent is not greedy."""
        if self.nvext is not None and self.nvext.greed_sampling is True:
            return 0.0
        return DEFAULT_TEMPERATURE if self.temperature is None else self.temperature

    def to_triton(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int | None,
        stop_words: tuple[str, ...] = (),
    ) -> GenerateRequest:
        """The request on Triton's wire, `stop_words` added to those of the body."""
        extra = self.nvext or NvExt()
        stops = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        ignore_eos, top_k, repetition_penalty = (
            getattr(extra if getattr(self, name) is None else self, name)
            for name in ("ignore_eos", "top_k", "repetition_penalty")
        )
        guide = self.guide
        bias = self._bias()
        as_sent = {name: getattr(self, name) for name in _AS_SENT}
        return GenerateRequest(
            prompt if isinstance(prompt, str) else None,
            max_tokens,
            **as_sent,
            input_ids=None if isinstance(prompt, str) else prompt,
            temperature=self.effective_temperature,
            top_k=None if top_k is None else max(top_k, 0),  # -1 is vLLM's way to turn it off
            repetition_penalty=repetition_penalty,
            # OpenAI's may be negative, Triton's may not.
            seed=None if self.seed is None else self.seed % (1 << 64),
            stop_words=[*stops, *stop_words],
            end_id=-1 if ignore_eos else None,
            logit_bias_ids=list(bias),
            logit_bias_values=list(bias.values()),
            return_log_probs=self.wants_log_probs,
            top_log_probs=self.alternatives or None,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
            return_perf_metrics=True,
            skip_reading_prefix_cache=(
                self.skip_reading_prefix_cache is True or self.cache_prompt is False or None
            ),
            # An empty one predicts nothing.
            prediction=text_of("" if self.prediction is None else self.prediction.content) or None,
            guided_decoding_guide_type=None if guide is None else guide.kind,
            guided_decoding_guide=None if guide is None else guide.text,
        )

    def _bias(self) -> dict[int, float]:
        """By token id. Raises `ApiError`."""
        found = {}
        for name, bias in (self.logit_bias or {}).items():
            if not name.isdecimal() or int(name) >= 1 << 31:
                raise refused("logit_bias", f"logit_bias names {name!r}; it must name token ids")
            found[int(name)] = bias
        return found

    def _check_stream_options(self) -> None:
        tells_usage = self.include_usage or self.continuous_usage
        for name, wanted in (("stream_options", tells_usage), ("return_trace", self.return_trace)):
            if wanted and not self.stream:
                raise refused(name, f"{name} is only allowed when stream is true")


class CompletionBody(SamplingBody):
    """`POST /v1/completions`."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NOT_OFFERED, **TOOLS}

    prompt: _Text | list[_Text] | _TokenIds | list[_TokenIds]
    max_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | Literal[False] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompletionBody:
        self._check_stream_options()
        if not self.prompts:
            raise refused("prompt", "prompt holds nothing; send at least one text")
        if (texts := len(self.prompts) * self.candidates) > MOST_TEXTS:
            raise refused(
                "prompt", f"prompt and n ask for {texts} texts; at most {MOST_TEXTS} are generated"
            )
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

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    """Further variables of the chat template."""
    reasoning_effort: str | None = None
    """A variable of the chat template, too."""
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        self._check_stream_options()
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        return self

    @property
    def wants_log_probs(self) -> bool:
        return self.logprobs is True

    @property
    def alternatives(self) -> int:
        return self.top_logprobs or 0

    @cached_property
    def tool_use(self) -> ToolUse:
        """What the model is told of tools. Raises `ApiError`."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def ends_with_a_call(self) -> bool:
        """A grammar ends the text itself."""
        use = self.tool_use
        return bool(use.tools) and not use.parallel and self.guide is None

    @property
    def template_variables(self) -> dict[str, JsonValue]:
        """Beyond messages and tools."""
        given = self.chat_template_kwargs or {}
        if self.reasoning_effort is None:
            return given
        return {"reasoning_effort": self.reasoning_effort, **given}

    def generate_request(self, prompt: str, stop_words: tuple[str, ...]) -> GenerateRequest:
        limit = self.max_completion_tokens or self.max_tokens
        return self.to_triton(prompt, max_tokens=limit, stop_words=stop_words)

    @cached_property
    def guide(self) -> Guide | None:
        """Of calls, or of the answer as text."""
        return self.guide_of_tools or super().guide

    @cached_property
    def guide_of_tools(self) -> Guide | None:
        """Of calls, where one is required or a tool is strict, or of calls or JSON."""
        use, guide = self.tool_use, super().guide
        if use.required or guide is None:
            grammar = grammar_of(use)
            return None if grammar is None else Guide("ebnf_grammar", grammar, "tools")
        if not use.tools or guide.kind != "json_schema":
            return None
        return Guide("ebnf_grammar", calls_or_json_grammar(use, guide.text), guide.field)
