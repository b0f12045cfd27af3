"""What tests of engines of other projects share: prompts, and streams in which a process dies."""

from __future__ import annotations

import asyncio
import os
import signal

from running_service import BACK_S, Refused, RunningService

PROMPTS = (
    "def fibonacci(n):",
    'def is_prime(number: int) -> bool:\n    """Whether a number is prime."""\n',
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
    "def merge(left, right):\n    result = []\n    while",
)


async def texts_while_killed(
    service: RunningService, victim: int, *, streams: int, max_tokens: int
) -> list[str | Refused]:
    """Each stream's text, or the error that ended it; the victim is killed while they flow."""
    begun = [asyncio.Event() for _ in range(streams)]

    async def read(index: int) -> str | Refused:
        text = ""
        try:
            async for reply in service.stream(
                text_input=PROMPTS[index], max_tokens=max_tokens, stream=True,
                client_timeout_s=2 * BACK_S,
            ):  # fmt: skip
                text += reply.text
                begun[index].set()
        except Refused as refused:
            return refused
        finally:
            begun[index].set()
        return text

    tasks = [asyncio.create_task(read(index)) for index in range(streams)]
    await asyncio.gather(*(event.wait() for event in begun))
    os.kill(victim, signal.SIGKILL)
    return list(await asyncio.gather(*tasks))
