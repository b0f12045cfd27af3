"""What tests of a service with vLLM share: settings, and vLLM's process."""

from __future__ import annotations

from typing import Any

import psutil
from running_service import RunningService

MAX_TOKENS = 96

SETTINGS: dict[str, Any] = {
    "target": {"engine": "vllm", "dtype": "float32", "vllm": {"max_num_batched_tokens": 512}},
    "cache": {"slots": 16},
    "limits": {"prompt_tokens": 128, "context_tokens": 512, "max_tokens": 300},
}


def vllm_of(service: RunningService, role: str) -> int:
    """vLLM's process below that of a model."""
    (child,) = psutil.Process(service.pid_of(role)).children()
    return child.pid
