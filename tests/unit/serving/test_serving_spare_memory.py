"""Freed memory goes back to the kernel, as often as it should."""

from __future__ import annotations

from unittest.mock import Mock

import psutil
import pytest
from told_clock import ToldClock

from card.serving.spare_memory import PERIOD_S, SpareMemory

BLOCK_BYTES = 100_000
"""Below what the C library asks the kernel for piece by piece."""


def test_it_is_given_back_once_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ToldClock()
    spare = SpareMemory(clock)
    trim = Mock()
    monkeypatch.setattr(spare, "_trim", trim)
    for clock.now_s in (0.0, PERIOD_S - 1, PERIOD_S, PERIOD_S + 1, 2 * PERIOD_S - 1):
        spare.give_back()
    assert trim.call_count == 1
    clock.now_s = 2 * PERIOD_S
    spare.give_back()
    assert trim.call_count == 2


def test_holes_between_what_is_kept_are_given_back() -> None:
    clock = ToldClock()
    spare = SpareMemory(clock)
    process = psutil.Process()
    blocks = [bytes(BLOCK_BYTES) + b"." for _ in range(600)]
    kept = blocks[::20]
    del blocks
    before = process.memory_info().rss
    clock.now_s = PERIOD_S
    spare.give_back()
    assert before - process.memory_info().rss > 20 * BLOCK_BYTES
    assert all(len(block) == BLOCK_BYTES + 1 for block in kept)
