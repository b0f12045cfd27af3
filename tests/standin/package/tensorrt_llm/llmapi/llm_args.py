"""Arguments of `LLM`: an unknown one is an error."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class CudaGraphConfig(_Strict):
    batch_sizes: list[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False


class KvCacheConfig(_Strict):
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    tokens_per_block: int = 32
    free_gpu_memory_fraction: float | None = Field(default=0.9, ge=0, le=1)
    max_tokens: int | None = None
    dtype: str = "auto"


class UserProvidedDecodingConfig(_Strict):
    decoding_type: Literal["User_Provided"] = "User_Provided"
    max_draft_len: int
    max_concurrency: int | None = None
    drafter: object
    resource_manager: object = None


class DraftTargetDecodingConfig(_Strict):
    """The stand-in decodes without its draft: texts are the target's either way."""

    decoding_type: Literal["Draft_Target"] = "Draft_Target"
    max_draft_len: int
    max_concurrency: int | None = None
    speculative_model: str


class TorchLlmArgs(_Strict):
    model: str
    tokenizer: Any = None
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
