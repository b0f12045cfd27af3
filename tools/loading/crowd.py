"""Clients that keep a service full, in a process of their own.

In one process with them, a client that is measured would wait until their texts are read.

    python -m loading.crowd ADDRESS CLIENTS
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from card.serving.child import bound
from card_client import CardClient, CardError, GenerateRequest

PAUSE_S = 0.05
"""Of a client that was refused, before it asks again."""
_ANSWER_S = 120.0


@contextmanager
def crowd(address: str, clients: int) -> Iterator[None]:
    """So many clients that ask for long texts again and again, and are gone at the end."""
    command = [sys.executable, "-m", __name__, address, str(clients)]
    process = subprocess.Popen(bound(signal.SIGKILL, command), start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _stay_all(address: str, clients: int) -> None:
    await asyncio.gather(*(_stay(address) for _ in range(clients)))


async def _stay(address: str) -> None:
    request = GenerateRequest("def fibonacci(n):", max_tokens=512, end_id=-1)
    async with CardClient(address) as client:
        while True:
            with suppress(CardError):
                async for _ in client.stream(request, timeout_s=_ANSWER_S):
                    pass
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(_stay_all(sys.argv[1], int(sys.argv[2])))
