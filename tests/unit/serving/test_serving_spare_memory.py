"""Freed memory goes back to the kernel, as often as it should."""

from __future__ import annotations

import psutil
from told_clock import ToldClock

from card.serving.triton.engine_process import PERIOD_S, SpareMemory

BLOCK_BYTES = 100_000
"""Below what the C library asks the kernel for piece by piece."""


def test_holes_between_what_is_kept_are_given_back_once_a_period() -> None:
    clock, process = ToldClock(), psutil.Process()
    spare = SpareMemory(clock)
    kept: list[bytes] = []
    for clock.now_s, due in (
        (PERIOD_S - 1, False),
        (PERIOD_S, True),
        (2 * PERIOD_S - 1, False),
        (2 * PERIOD_S, True),
    ):
        blocks = [bytes(BLOCK_BYTES) + b"." for _ in range(600)]
        kept += blocks[::20]
        del blocks
        before = process.memory_info().rss
        spare.give_back()
        assert (before - process.memory_info().rss > 20 * BLOCK_BYTES) == due
    assert all(len(block) == BLOCK_BYTES + 1 for block in kept)
