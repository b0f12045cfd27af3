"""What tests of a service with vLLM share: settings, prompts, streams in which a process dies."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
from running_service import BACK_S, RunningService

PROMPTS = (
    "def fibonacci(n):",
    'def is_prime(number: int) -> bool:\n    """Whether a number is prime."""\n',
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
    "def merge(left, right):\n    result = []\n    while",
)
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


async def streams_while(service: RunningService, victim: int) -> list[str]:
    """Four streams' texts; the victim is killed while they flow."""
    begun = [asyncio.Event() for _ in range(4)]

    async def read(index: int) -> str:
        text = ""
        async for reply in service.stream(
            text_input=PROMPTS[index], max_tokens=MAX_TOKENS, stream=True,
            client_timeout_s=2 * BACK_S,
        ):  # fmt: skip
            text += reply.text
            begun[index].set()
        return text

    tasks = [asyncio.create_task(read(index)) for index in range(4)]
    await asyncio.gather(*(event.wait() for event in begun))
    os.kill(victim, signal.SIGKILL)
    return list(await asyncio.gather(*tasks))
