from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.llmapi.llm_args import (
    CudaGraphConfig,
    KvCacheConfig,
    TorchLlmArgs,
    UserProvidedDecodingConfig,
)

__all__ = [
    "CudaGraphConfig",
    "KvCacheConfig",
    "RequestError",
    "TorchLlmArgs",
    "UserProvidedDecodingConfig",
]
