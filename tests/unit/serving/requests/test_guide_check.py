"""Guides wait for their turn: fairly, not beyond their deadline, not for clients that left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from card.constraints import Guide
from card.serving.requests.guide_check import GuideCheck
from card.serving.requests.refusal import Refusal


class ScriptedCheck(GuideCheck):
    """Every guide compiles, as soon as the test says so."""

    def __init__(self) -> None:
        super().__init__(Path("no model"), 1.0)
        self.tried: list[str] = []
        self.may_answer = asyncio.Event()

    async def _try(self, guide: Guide) -> str | None:
        self.tried.append(guide.text)
        await self.may_answer.wait()
        return None


def guide(text: str) -> Guide:
    return Guide("regex", text)


async def _until_tried(check: ScriptedCheck, count: int) -> None:
    while len(check.tried) < count:
        await asyncio.sleep(0)


async def test_guide_is_not_tried_when_its_client_left_the_queue() -> None:
    check = ScriptedCheck()
    first = asyncio.create_task(check.check(guide("first")))
    await _until_tried(check, 1)
    with pytest.raises(Refusal, match="CANCELLED"):
        await check.check(guide("left"), is_gone=lambda: True)
    last = asyncio.create_task(check.check(guide("last")))
    check.may_answer.set()
    await asyncio.gather(first, last)
    assert check.tried == ["first", "last"]


async def test_guide_is_refused_and_not_tried_when_its_deadline_is_over() -> None:
    check = ScriptedCheck()
    first = asyncio.create_task(check.check(guide("first")))
    await _until_tried(check, 1)
    with pytest.raises(Refusal, match="DEADLINE_EXCEEDED"):
        await check.check(guide("late"), deadline_ns=time.monotonic_ns())
    check.may_answer.set()
    await first
    assert check.tried == ["first"]


async def test_each_client_has_a_turn_when_one_sends_many_guides() -> None:
    check = ScriptedCheck()
    many = [asyncio.create_task(check.check(guide(f"a{n}"), b"a")) for n in range(4)]
    await _until_tried(check, 1)
    one = asyncio.create_task(check.check(guide("b"), b"b"))
    await asyncio.sleep(0)
    check.may_answer.set()
    await asyncio.gather(*many, one)
    assert check.tried.index("b") <= 2


async def test_client_with_most_guides_gives_up_its_last_when_the_queue_is_full() -> None:
    check = ScriptedCheck()
    many = [asyncio.create_task(check.check(guide(f"a{n}"), b"a")) for n in range(32)]
    await _until_tried(check, 1)
    one = asyncio.create_task(check.check(guide("b"), b"b"))
    await asyncio.sleep(0)
    check.may_answer.set()
    await one
    outcomes = await asyncio.gather(*many, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes if outcome is not None] == [
        "UNAVAILABLE: 32 guides wait to be compiled; try again later"
    ]


async def test_short_guide_is_tried_first_when_a_client_sends_long_ones_too() -> None:
    check = ScriptedCheck()
    many = [asyncio.create_task(check.check(guide("long" * (n + 1)))) for n in range(4)]
    await _until_tried(check, 1)
    short = asyncio.create_task(check.check(guide("s")))
    await asyncio.sleep(0)
    check.may_answer.set()
    await asyncio.gather(*many, short)
    assert check.tried.index("s") == 1


async def test_longest_guide_leaves_a_full_queue_when_its_client_sends_a_shorter_one() -> None:
    check = ScriptedCheck()
    many = [asyncio.create_task(check.check(guide("a" * (n + 2)))) for n in range(32)]
    await _until_tried(check, 1)
    short = asyncio.create_task(check.check(guide("s")))
    with pytest.raises(Refusal, match="32 guides wait"):
        await check.check(guide("a" * 99))
    check.may_answer.set()
    await short
    refused = await asyncio.gather(*many, return_exceptions=True)
    assert [outcome is not None for outcome in refused] == [False] * 31 + [True]
