"""What a caller says: arguments of `LLM` and sampling parameters. An unknown one is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RequestError(RuntimeError):
    """One request failed; the engine goes on."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class CudaGraphConfig(_Strict):
    max_batch_size: int = 0
    enable_padding: bool = False


class KvCacheConfig(_Strict):
    enable_block_reuse: bool = True
    tokens_per_block: int = 32
    free_gpu_memory_fraction: float | None = Field(default=0.9, ge=0, le=1)
    dtype: str = "auto"


class UserProvidedDecodingConfig(_Strict):
    decoding_type: Literal["User_Provided"] = "User_Provided"
    max_draft_len: int
    drafter: object


class DraftTargetDecodingConfig(_Strict):
    """The stand-in decodes without its draft: texts are the target's either way."""

    decoding_type: Literal["Draft_Target"] = "Draft_Target"
    max_draft_len: int
    speculative_model: str


class TorchLlmArgs(_Strict):
    model: str
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpus_per_node: int | None = None
    dtype: str = "auto"
    max_batch_size: int = 2048
    max_seq_len: int | None = None
    max_num_tokens: int = 8192
    enable_chunked_prefill: bool = False
    disable_overlap_scheduler: bool = False
    sampler_type: Literal["auto", "TorchSampler", "TRTLLMSampler"] = "auto"
    cuda_graph_config: CudaGraphConfig | None = Field(default_factory=CudaGraphConfig)
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    speculative_config: UserProvidedDecodingConfig | DraftTargetDecodingConfig | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Keyword-only, with slots, so that nothing can be attached to it."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")

    @property
    def is_greedy(self) -> bool:
        """As `params_imply_greedy_decoding`."""
        unset = (self.temperature, self.top_p, self.top_k) == (None, None, None)
        return unset or self.top_k == 1 or self.top_p == 0 or self.temperature == 0
