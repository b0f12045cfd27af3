"""A clock that jumps: texts, deadlines and recoveries go by the time that passes, not by the date.

The clock of every process of the service is libfaketime's. As when an operator or NTP sets the
time, the date jumps and the monotonic clock goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from debian_package import unpacked
from running_service import RunningService, StartService

PROMPTS = ("def fibonacci(n):", "class Stack:\n    def __init__(self):\n", "import os\n")
REQUEST: dict[str, Any] = {"max_tokens": 128, "end_id": -1, "timeout_us": 60_000_000}
DAYS = (400, -400, 0)


@dataclass(frozen=True)
class Clock:
    """The date of a service, so many days from today."""

    file: Path

    def jump(self, days: int) -> None:
        """Where the clock stands from now on; all processes see it at once."""
        written = self.file.with_suffix(".new")
        written.write_text(f"{days:+d}d\n")
        os.replace(written, self.file)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    clock = Clock(tmp_path_factory.mktemp("clock") / "offset")
    clock.jump(0)
    return clock


@pytest.fixture(scope="module")
def service(clock: Clock, start_service: StartService) -> Iterator[RunningService]:
    (library,) = unpacked("libfaketime").glob("usr/lib/*/faketime/libfaketimeMT.so.1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock.file))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        before = left_behind()
        with start_service({}) as service:
            patch.undo()
            yield service
        for path in left_behind() - before:
            path.unlink()


def left_behind() -> set[Path]:
    """What the library leaves in shared memory when a process becomes another program."""
    return set(Path("/dev/shm").glob("*faketime_s*_*"))


async def test_clock_when_it_jumps_changes_no_text_and_ends_no_request(
    clock: Clock, service: RunningService
) -> None:
    right = [await service.text(prompt, decoding="autoregressive", **REQUEST) for prompt in PROMPTS]
    before = service.health_but_loads
    texts = ["" for _ in PROMPTS]

    async def read(number: int) -> None:
        async for reply in service.stream(text_input=PROMPTS[number], stream=True, **REQUEST):
            texts[number] += reply.text

    for days in DAYS:
        texts[:] = ["" for _ in PROMPTS]
        reading = [asyncio.create_task(read(number)) for number in range(len(PROMPTS))]
        await service.until(lambda: all(texts), "text flows")
        day = (datetime.now(timezone.utc) + timedelta(days)).date().isoformat()
        said = len(service.log.read_text())
        clock.jump(days)
        await asyncio.gather(*reading)
        assert texts == right
        assert await service.text(PROMPTS[0], **REQUEST) == right[0]
        # The test's own proof: the service did live on another day.

        def is_told(day: str = day, said: int = said) -> bool:
            return day in service.log.read_text()[said:]

        await service.until(is_told, f"{day} is in the log")
        assert service.health_but_loads == before | {"state": "ready"}
