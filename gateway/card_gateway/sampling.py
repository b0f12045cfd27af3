"""The fields that all requests for text have, and the request to Triton that they become.

The fields are OpenAI's and those that TensorRT-LLM's and vLLM's servers and `genai-perf` add to
them. A field that is not offered is refused by name, unless its value asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from card_client import GenerateRequest
from card_gateway.errors import refused
from card_gateway.limits import (
    MOST_ANSWERS,
    MOST_BIASES,
    MOST_FIELDS,
    MOST_TEXTS,
    MOST_TOKENS,
    NOT_OFFERED,
    AtMost,
    Few,
    Talk,
    without_what_asks_for_nothing,
)
from card_gateway.messages import Part, TextPart, text_of
from card_gateway.structured import GuidedFields, NvExt
from card_gateway.tools.definitions import ToolUse

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; Triton's wire means greedy by an absent temperature."""

_TOKEN_ID = re.compile("[0-9]{1,10}")

Text = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]

_AS_SENT = (
    *("top_p", "min_p", "presence_penalty", "frequency_penalty", "min_tokens", "bad_words"),
    *("stop_token_ids", "return_trace", "decoding", "drafter", "forbidden_drafter", "growth"),
    *("acceptance", "cache_salt"),
)
"""Fields that Triton has under the same name."""


class StreamOptions(Part):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Whether every chunk tells the usage so far."""
    include_obfuscation: bool | None = None
    """Accepted, without effect."""


class Prediction(Part):
    """The text that the client expects."""

    type: Literal["content"]
    content: str | Talk[TextPart]


class SamplingBody(GuidedFields):
    """The fields that completions and chats share."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = NOT_OFFERED

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: str | Few[list[str]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Accepted, without effect: they describe the client.
    user: str | None = None
    metadata: Annotated[dict[str, str], AtMost(MOST_FIELDS)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    prediction: Prediction | None = None
    """The text that the client expects. It makes candidates, so it changes speed alone."""
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], AtMost(MOST_BIASES)] | None
    ) = None
    # Beyond OpenAI's API.
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    length_penalty: float | None = None
    """Accepted, without effect: it ranks beams."""
    stop_token_ids: Few[list[TokenId]] | None = None
    bad_words: Few[list[str]] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    ignore_eos: bool | None = None
    decoding: str | None = None
    drafter: str | None = None
    forbidden_drafter: str | None = None
    growth: str | None = None
    acceptance: str | None = None
    cache_salt: Text | None = None
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
    def token_limit(self) -> int | None:
        """Tokens that each text may have; None: the request does not say."""
        return self.max_tokens

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
        """Texts that an answer has for each prompt."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Texts that are generated for each prompt."""
        return self.answers

    @property
    def is_prompt_alone(self) -> bool:
        """Whether the answer leaves out what is generated: a completion may ask for that."""
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
        """Likeliest tokens that an answer has at each position."""
        raise NotImplementedError

    @property
    def effective_temperature(self) -> float:
        """The temperature for Triton. `nvext` may ask for greedy decoding; absent means 1."""
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
        """The biases by token id. Raises `ApiError`."""
        found = {}
        for name, bias in (self.logit_bias or {}).items():
            if not _TOKEN_ID.fullmatch(name) or int(name) >= 1 << 31:
                what = name if len(name) <= 40 else f"{name[:40]}..."
                raise refused("logit_bias", f"logit_bias names {what!r}; it must name token ids")
            found[int(name)] = bias
        return found

    def _check_stream_options(self) -> None:
        tells_usage = self.include_usage or self.continuous_usage
        for name, wanted in (("stream_options", tells_usage), ("return_trace", self.return_trace)):
            if wanted and not self.stream:
                raise refused(name, f"{name} is only allowed when stream is true")

    def _check_amount(self, prompts: int, absent: int) -> None:
        """Bound what one request has generated; a text without a limit counts as `absent`."""
        texts = prompts * self.candidates
        if texts > MOST_TEXTS:
            raise refused(
                "prompt", f"prompt and n ask for {texts} texts; at most {MOST_TEXTS} are generated"
            )
        if texts > 1 and (tokens := texts * (self.token_limit or absent)) > MOST_TOKENS:
            raise refused(
                "max_tokens",
                f"{texts} texts with their max_tokens are {tokens} tokens; at most {MOST_TOKENS} "
                "are generated for one request",
            )
