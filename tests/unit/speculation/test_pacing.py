"""A pacing is two predicates, and the loops obey them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, request_of, settings_of

from card.cache import Finish
from card.engines import Logits, SequenceTokens
from card.speculation.pacing import PACINGS, Progress
from card.speculation.pacing.card import HEAD_START

MODEL = FakeModel(agreement=0.8)


def may_run(pacing: str, **progress: Any) -> tuple[bool, bool]:
    """Whether draft and target may run, with γ = 4."""
    found = Progress(4, **progress)
    return PACINGS[pacing].draft_may_run(found), PACINGS[pacing].target_may_run(found)


@pytest.mark.parametrize(
    ("pacing", "draft", "target"),
    [
        ("auto", [True, True], [True, True]),
        ("autoregressive", [False, False], [True, True]),
        ("draft_then_verify", [True, False], [False, True]),
        ("card", [True, True], [True, True]),
        ("pearl", [True, False], [True, True]),
        ("branch", [True, True], [False, True]),
        ("ssd", [True, True], [False, True]),
    ],
)
def test_who_may_run(pacing: str, draft: list[bool], target: list[bool]) -> None:
    found = [may_run(pacing, passes=passes) for passes in (3, 4)]
    assert found == list(zip(draft, target, strict=True))


@pytest.mark.parametrize("pacing", PACINGS)
def test_an_exhausted_draft_is_never_waited_for(pacing: str) -> None:
    assert may_run(pacing, exhausted=True, ahead=1)[1]


@pytest.mark.parametrize("apart", [True, False])
def test_before_the_first_commit_only_a_draft_apart_runs_and_keeps_to_a_head_start(
    apart: bool,
) -> None:
    made = (0, HEAD_START - 1, HEAD_START)
    found = [may_run("card", passes=passes, begun=False, apart=apart)[0] for passes in made]
    assert found == [apart, apart, False]


def test_branches_are_followed_while_the_target_verifies_what_is_before_them() -> None:
    assert [may_run("branch", passes=2, forks=forks)[1] for forks in (False, True)] == [False, True]
    assert [may_run("branch", ahead=ahead)[1] for ahead in (3, 4)] == [False, True]
    assert [may_run("branch", passes=passes)[0] for passes in (7, 8)] == [True, False]
    assert [may_run("branch", passes=passes, inherited=3)[0] for passes in (4, 5)] == [True, False]


def engines() -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine(FakeModel(), tree=False), FakeEngine(MODEL, tree=True)


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_draft_then_verify_takes_turns_of_gamma_passes(gamma: int) -> None:
    target, draft = engines()
    with OneProcess(target, draft, settings_of(width=1, growth="layered", rows=16)) as both:
        request = request_of([1, 2, 3], 24, "draft_then_verify", gamma=gamma)
        stream = both.open(request)
        turns = []
        assert both.target.step(), "prefill waits for no draft"
        while stream.finish is Finish.RUNNING:
            passes = 0
            assert not both.target.step(), "the target waits while the draft drafts"
            while both.draft.step():
                passes += 1
                if passes < gamma and stream.output:
                    assert not both.target.step()
            assert both.target.step(), "the draft had its turn"
            turns.append(passes)
        assert turns[0] == max(turns) == gamma
        assert len(turns) < 24, "candidates were accepted"
        assert stream.counters.misses == 0, "no turn left the target without candidates"


class Meanwhile(FakeEngine):
    """A target whose passes last as long as something else takes."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        found = super().forward(batch, alone=alone)
        self.between()
        return found


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_pearl_verifies_a_chunk_while_the_next_one_is_drafted(gamma: int) -> None:
    target, draft = Meanwhile(FakeModel(), tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(target, draft, settings_of(width=1, growth="layered", rows=16)) as both:
        rounds: list[int] = []

        def draft_a_round() -> None:
            rounds.append(0)
            while both.draft.step():
                rounds[-1] += 1

        target.between = draft_a_round
        stream = both.open(request_of([1, 2, 3], 64, "pearl", gamma=gamma))
        while stream.finish is Finish.RUNNING:
            assert both.target.step(), "both end a round together: neither waits"
        left = 2 * gamma  # the last rounds are as long as the text
        rows = [len(batch[0].tokens) for batch in target.batches[1:-left]]
        assert set(rows) == {1, gamma}, "pre-verify, and post-verify of a whole chunk"
        assert set(rounds[1:-left]) == {gamma}
        assert stream.counters.accepted or gamma == 1


def test_pearl_waits_for_a_chunk_that_is_begun() -> None:
    target, draft = Meanwhile(FakeModel(), tree=False), FakeEngine(FakeModel(), tree=True)
    with OneProcess(target, draft, settings_of(width=1, growth="layered", rows=16)) as both:
        stream = both.open(request_of([1, 2, 3], 24, "pearl", gamma=4))
        assert both.target.step(), "prefill waits for no draft"
        assert both.draft.step(), "the text and the first candidate"
        for _ in range(2):
            assert not both.target.step()
            assert both.draft.step()
        assert both.target.step(), "three candidates and the target's own token are a chunk"
        assert len(stream.output) == 1 + 4


def test_card_pacing_when_a_model_is_ready_never_waits() -> None:
    target, draft = engines()
    with OneProcess(target, draft, settings_of(depth=4, width=1, growth="layered")) as both:
        stream = both.open(request_of([1, 2, 3], 8))
        assert both.target.step(), "the target prefills without any candidate"
        assert both.target.step(), "and decodes without any"
        before = len(stream.output)
        while both.draft.step():
            assert len(stream.output) == before
        asleep = len(draft.batches)
        assert not both.draft.step(), "the draft has run ahead as far as it may, and sleeps"
        assert both.target.step()
        assert both.draft.step(), "a commit wakes it"
        assert len(draft.batches) == asleep + 1


def test_the_draft_leaves_the_cores_to_a_prompt_that_is_read() -> None:
    target, draft = engines()
    with OneProcess(target, draft, settings_of(depth=32, width=1, growth="layered")) as both:
        both.open(request_of([1, 2, 3], 64))
        while both.draft.step():
            pass
        assert len(draft.batches) == HEAD_START
        assert both.target.step(), "the first commit"
        assert both.draft.step(), "and neither waits from there on"


def test_a_draft_that_gives_nothing_costs_a_text_little_more_than_one_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = engines()
    now_s = began_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with OneProcess(target, draft, settings_of()) as both:
        limit_s = both.settings.serving.engine_timeout_s
        stream = both.open(request_of([1, 2, 3], 60, "draft_then_verify", gamma=4))
        while len(stream.output) < 40:
            now_s += limit_s / 200
            both.target.step()
        assert now_s - began_s < 3 * limit_s
        while both.draft.step():
            pass
        assert both.target.step(), "it works again"
        now_s += limit_s / 2
        assert not both.target.step(), "and gets its time again"
