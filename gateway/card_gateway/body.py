"""What a request may say, and what becomes of it on Triton's wire.

The fields are OpenAI's, plus those that TensorRT-LLM's and vLLM's servers and `genai-perf` added to
them. What is not offered is refused by name, unless its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue, field_validator, model_validator

from card_client import GenerateRequest
from card_gateway.errors import as_json, refused
from card_gateway.messages import Message, Part, check_messages
from card_gateway.tools.definitions import Tool, ToolChoice, ToolUse, tool_use
from card_gateway.tools.grammar import calls_grammar
from card_gateway.tools.written import END_OF_CALL

NOT_OFFERED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields of OpenAI's API that nothing here can do, each with the values that ask for nothing."""

_WHY_NOT: Mapping[str, str] = {"echo": "the prompt is not sent back"}

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, for a completion that names no limit; a chat then has the server's own."""

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; Triton's wire means greedy by an absent temperature."""


_Text = Annotated[str, Field(min_length=1)]


TOOLS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
"""Those that only a chat has."""


class StreamOptions(Part):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted, without effect."""


class NvExt(Part):
    """NVIDIA's extensions, as `genai-perf` sends them to Dynamo and NIM."""

    ignore_eos: bool | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    greed_sampling: bool | None = None


class SamplingBody(Part):
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
    # Beyond OpenAI's API.
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    ignore_eos: bool | None = None
    decoding: str | None = None
    nvext: NvExt | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_offered(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, neutral in cls.not_offered.items():
            value = body.get(name)
            if value is None or any(type(value) is type(one) and value == one for one in neutral):
                continue
            allowed = " or ".join(map(as_json, neutral))
            only = f"only {allowed} is allowed" if neutral else "leave it out"
            why = f": {_WHY_NOT[name]}" if name in _WHY_NOT else ""
            raise refused(name, f"{name} is not offered; {only}{why}", "unsupported_parameter")
        return {name: value for name, value in body.items() if name not in cls.not_offered}

    @property
    def include_usage(self) -> bool:
        """Whether the end of a stream tells the usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def wants_log_probs(self) -> bool:
        raise NotImplementedError

    @property
    def effective_temperature(self) -> float:
        """What Triton is asked for: `nvext` may want greedy decoding, and absent is not greedy."""
        if self.nvext is not None and self.nvext.greed_sampling is True:
            return 0.0
        return DEFAULT_TEMPERATURE if self.temperature is None else self.temperature

    @property
    def effective_repetition_penalty(self) -> float | None:
        """What Triton is asked for: the body's own, else that of `nvext`."""
        if self.repetition_penalty is None and self.nvext is not None:
            return self.nvext.repetition_penalty
        return self.repetition_penalty

    def to_triton(
        self, prompt: str, *, max_tokens: int | None, stop_words: tuple[str, ...] = ()
    ) -> GenerateRequest:
        """The request on Triton's wire, `stop_words` added to those of the body."""
        extra = self.nvext or NvExt()
        stops = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        ignore_eos = extra.ignore_eos if self.ignore_eos is None else self.ignore_eos
        return GenerateRequest(
            prompt,
            max_tokens,
            temperature=self.effective_temperature,
            top_k=extra.top_k if self.top_k is None else self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.effective_repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            min_tokens=self.min_tokens,
            # OpenAI's may be negative, Triton's may not.
            seed=None if self.seed is None else self.seed % (1 << 64),
            stop_words=[*stops, *stop_words],
            end_id=-1 if ignore_eos else None,
            return_log_probs=self.wants_log_probs,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
            decoding=self.decoding,
        )

    def _check_alternatives(self, name: str, count: int) -> None:
        """Of the likeliest tokens only one is known, the chosen one of plain greedy decoding."""
        plain = (
            self.effective_temperature == 0
            and not (self.presence_penalty or self.frequency_penalty or self.min_tokens)
            and self.effective_repetition_penalty in (None, 1)
        )
        if count > plain:
            raise refused(
                name,
                f"{name} is {count}; it must be 0, which reports the chosen tokens, or 1 with "
                "temperature 0, no penalties and no min_tokens: log-probabilities of other tokens "
                "are not offered",
                "unsupported_parameter",
            )

    def _check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "stream_options is only allowed when stream is true")


class CompletionBody(SamplingBody):
    """`POST /v1/completions`."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NOT_OFFERED, **TOOLS}

    prompt: _Text | list[_Text]
    logprobs: Annotated[int, Field(ge=0)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _no_token_ids(cls, prompt: Any) -> Any:
        first = prompt[0] if isinstance(prompt, list) and prompt else None
        if isinstance(first[0] if isinstance(first, list) and first else first, int):
            raise refused(
                "prompt", "prompt holds token ids; send it as text", "unsupported_parameter"
            )
        return prompt

    @model_validator(mode="after")
    def _consistent(self) -> CompletionBody:
        self._check_stream_options()
        self._check_alternatives("logprobs", self.logprobs or 0)
        if not isinstance(self.prompt, str) and len(self.prompt) != 1:
            raise refused(
                "prompt", f"prompt holds {len(self.prompt)} texts; send one text a request"
            )
        return self

    @property
    def wants_log_probs(self) -> bool:
        return self.logprobs is not None

    @property
    def alternatives(self) -> bool:
        return bool(self.logprobs)

    def generate_request(self) -> GenerateRequest:
        prompt = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        return self.to_triton(prompt, max_tokens=self.max_tokens or DEFAULT_COMPLETION_TOKENS)


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    """Further variables of the chat template."""
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        self._check_stream_options()
        check_messages(self.messages)
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        self._check_alternatives("top_logprobs", self.top_logprobs or 0)
        return self

    @property
    def wants_log_probs(self) -> bool:
        return self.logprobs is True

    @property
    def alternatives(self) -> bool:
        return bool(self.top_logprobs)

    @cached_property
    def tool_use(self) -> ToolUse:
        """What the model is told of tools. Raises `ApiError`."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def generate_request(self, prompt: str, stop_words: tuple[str, ...]) -> GenerateRequest:
        limit = self.max_completion_tokens or self.max_tokens
        use = self.tool_use
        if use.tools and not use.parallel:
            stop_words = (*stop_words, END_OF_CALL)
        request = self.to_triton(prompt, max_tokens=limit, stop_words=stop_words)
        if not use.required:
            return request
        return replace(
            request,
            guided_decoding_guide_type="ebnf_grammar",
            guided_decoding_guide=calls_grammar(use),
        )
