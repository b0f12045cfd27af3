"""The target's loop under a controller: whatever that decides, texts stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel, fake
from one_process import OneProcess, Stream, autoregressive, request_of, settings_of

from card.cache import Finish
from card.speculation.control import CONTROLLERS, ControlledSession, Share, StepPlan
from card.speculation.control.fixed import Fixed

MODEL = FakeModel()


class Scripted(Fixed):
    """The draft works for sessions that adapt when `drafts` says so."""

    drafts: Callable[[], bool] = staticmethod(lambda: False)
    awaited: Callable[[], int] = staticmethod(lambda: 0)
    patience_s = 60.0

    def plan(self, sessions: Sequence[ControlledSession], **_: Any) -> StepPlan:
        works, awaited = type(self).drafts(), type(self).awaited()
        return StepPlan(
            [
                Share(works or not s.adapts, 8, 4, awaited=awaited, patience_s=self.patience_s)
                if s.takes_turns
                else Share(works or not s.adapts, 8, 4)
                for s in sessions
            ]
        )


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneProcess]:
    monkeypatch.setitem(CONTROLLERS, "measured", Scripted)
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(*engines, settings_of(rows="auto")) as loops:
        yield loops


def opened(both: OneProcess, pacings: list[str], tokens: int = 20) -> list[Stream]:
    return [
        both.open(request_of([number, 1], tokens, pacing), number)
        for number, pacing in enumerate(pacings)
    ]


def test_sessions_of_other_pacings_keep_their_draft(both: OneProcess) -> None:
    streams = opened(both, ["auto", "draft_then_verify", "pearl"])
    for _ in range(2):
        both.target.step()
    both.run(streams, draft_steps=6)
    drafted = {rows.session for batch in fake(both.draft_engine).batches for rows in batch}
    assert len(drafted) == 2
    assert [stream.counters.hits > 0 for stream in streams] == [False, True, True]


@pytest.mark.parametrize(("pacing", "works"), [("auto", 3), ("auto", 5)])
def test_a_draft_that_is_stopped_woken_and_awaited_at_random_changes_no_text(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch, pacing: str, works: int
) -> None:
    """Only `auto` lets the target wait."""
    decided = iter(range(10_000))
    monkeypatch.setattr(Scripted, "drafts", lambda: next(decided) * 2654435761 % 7 < works)
    monkeypatch.setattr(Scripted, "awaited", lambda: next(decided) * 2654435761 % 5)
    streams = opened(both, [pacing] * 4, tokens=60)
    texts = both.run(streams, draft_steps=3)
    assert texts == [autoregressive(MODEL, request_of([n, 1], 60)) for n in range(4)]
    assert sum(stream.counters.hits for stream in streams) > 0


def test_a_draft_that_gives_nothing_is_awaited_no_longer_than_the_plan_says(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft lives and is never stepped."""
    monkeypatch.setattr(Scripted, "patience_s", 0.001)
    monkeypatch.setattr(Scripted, "drafts", lambda: True)
    monkeypatch.setattr(Scripted, "awaited", lambda: 2)
    texts = both.run(opened(both, ["auto"]), draft_steps=0)
    assert texts == [autoregressive(MODEL, request_of([0, 1], 20))]


def test_a_fresh_target_wakes_the_draft_that_its_predecessor_stopped(both: OneProcess) -> None:
    opened(both, ["auto"] * 2)
    for _ in range(2):
        both.target.step()
    assert both.pool.draft_stopped
    both.restart_target(FakeEngine(MODEL, tree=False))
    assert not both.pool.draft_stopped


def test_a_session_that_waits_for_its_draft_keeps_the_target_to_its_threads(
    both: OneProcess,
) -> None:
    waiting = opened(both, ["draft_then_verify", "autoregressive"])
    both.target.step()  # reads the prompts
    for _ in range(5):
        both.target.step()
        assert not fake(both.target_engine).alone
    assert len(waiting[0].output) < len(waiting[1].output)


def test_the_target_takes_every_core_when_a_drafted_text_has_ended_and_is_not_closed_yet(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "drafts", lambda: True)
    (ending,) = opened(both, ["auto"], 2)
    both.open(request_of([9], 20, "autoregressive"), 1)
    while ending.finish is Finish.RUNNING:
        both.target.step()
    both.target.step()
    assert fake(both.target_engine).alone


@pytest.mark.parametrize(
    ("pacings", "drafts", "draft_lives", "alone"),
    [
        (["autoregressive"], True, True, True),
        (["auto"], True, True, False),
        (["auto"], True, False, True),
        (["auto", "autoregressive"], True, True, False),
        (["auto", "autoregressive"], False, True, True),
        (["auto", "pearl"], False, True, False),
    ],
)
def test_the_target_takes_every_core_while_no_draft_works(
    both: OneProcess,
    monkeypatch: pytest.MonkeyPatch,
    pacings: list[str],
    drafts: bool,
    draft_lives: bool,
    alone: bool,
) -> None:
    monkeypatch.setattr(Scripted, "drafts", lambda: drafts)
    opened(both, pacings)
    if not draft_lives:
        both.kill_draft()
    taken = []
    for _ in range(3):
        both.target.step()
        taken.append(fake(both.target_engine).alone)
    assert taken == [True, alone, alone], "the draft computes nothing while it reads a prompt"


@pytest.mark.parametrize(
    ("pacing", "drafts", "awaited", "ways"),
    [
        ("auto", False, 0, {"alone", "ngrams"}),
        ("auto", True, 0, {"beside"}),
        ("auto", True, 2, {"ngrams", "turns"}),  # the first pass does not wait yet
        ("card", True, 0, set()),
        ("autoregressive", False, 0, set()),
    ],
)
def test_ways_when_the_controller_decides_are_counted_for_auto_alone(
    both: OneProcess,
    monkeypatch: pytest.MonkeyPatch,
    pacing: str,
    drafts: bool,
    awaited: int,
    ways: set[str],
) -> None:
    monkeypatch.setattr(Scripted, "drafts", lambda: drafts)
    monkeypatch.setattr(Scripted, "awaited", lambda: awaited)
    both.run(opened(both, [pacing]), draft_steps=6)
    counted = {way for way, (tokens_per_s, _) in both.pool.ways().items() if tokens_per_s}
    assert counted <= ways
    assert bool(counted) == bool(ways)
    assert ("turns" in counted) == (awaited > 0)
