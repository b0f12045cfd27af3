from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.llmapi.llm_args import (
    CudaGraphConfig,
    DraftTargetDecodingConfig,
    KvCacheConfig,
    TorchLlmArgs,
    UserProvidedDecodingConfig,
)

__all__ = [
    "CudaGraphConfig",
    "DraftTargetDecodingConfig",
    "KvCacheConfig",
    "RequestError",
    "TorchLlmArgs",
    "UserProvidedDecodingConfig",
]
