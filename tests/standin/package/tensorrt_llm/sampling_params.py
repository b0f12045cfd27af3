"""What a request may ask for: keyword-only, with slots, so that nothing can be attached to it."""

from __future__ import annotations

from dataclasses import dataclass

from tensorrt_llm import __version__


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    ignore_eos: bool = False
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_perf_metrics: bool = False
    exclude_input_from_output: bool = True
    detokenize: bool = True
    add_special_tokens: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")

    @property
    def is_greedy(self) -> bool:
        """`_greedy_decoding` of up to 1.1, `params_imply_greedy_decoding` of later versions."""
        if __version__.startswith("1.1"):
            return self.top_k in (None, 1) and self.top_p in (None, 0.0)
        unset = self.temperature is None and self.top_p is None and self.top_k is None
        return unset or self.top_k == 1 or self.top_p == 0 or self.temperature == 0
