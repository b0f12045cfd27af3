"""A pacing is two predicates, and the loops obey them."""

from __future__ import annotations

import time
from itertools import product

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, request_of, settings_of

from card.cache import Decoding, EngineState, Finish
from card.pacing import SETTLED, draft_may_run, target_may_run, target_queries

MODEL = FakeModel(agreement=0.8)


@pytest.mark.parametrize(
    ("decoding", "draft", "target"),
    [
        (Decoding.AUTOREGRESSIVE, [False, False, False], [True, True, True]),
        (Decoding.DRAFT_THEN_VERIFY, [True, False, False], [False, True, True]),
        (Decoding.CARD, [True, True, True], [True, True, True]),
    ],
)
def test_who_may_run(decoding: Decoding, draft: list[bool], target: list[bool]) -> None:
    passes = [3, 4, SETTLED]
    assert [draft_may_run(decoding, 4, made) for made in passes] == draft
    assert [target_may_run(decoding, 4, made, draft_lives=True) for made in passes] == target


@pytest.mark.parametrize(("decoding", "passes"), list(product(Decoding, [0, 1, SETTLED])))
def test_a_dead_draft_is_never_waited_for(decoding: Decoding, passes: int) -> None:
    assert target_may_run(decoding, 4, passes, draft_lives=False)


def test_autoregressive_decoding_never_asks_the_cache() -> None:
    assert [target_queries(d) for d in Decoding] == [False, True, True]


def engines() -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine(FakeModel(), tree=False), FakeEngine(MODEL, tree=True)


def test_autoregressive_decoding_leaves_the_draft_alone() -> None:
    target, draft = engines()
    with OneProcess(target, draft, settings_of()) as both:
        stream = both.open(request_of([1, 2, 3], 6, Decoding.AUTOREGRESSIVE))
        both.run([stream])
        assert draft.batches == []
        assert stream.counters.queries == 0
        assert [len(batch[0].tokens) for batch in target.batches] == [3, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_draft_then_verify_takes_turns_of_gamma_passes(gamma: int) -> None:
    target, draft = engines()
    with OneProcess(target, draft, settings_of(width=1, growth="layered", rows=16)) as both:
        request = request_of([1, 2, 3], 24, Decoding.DRAFT_THEN_VERIFY, gamma=gamma)
        stream = both.open(request)
        turns = []
        assert both.target.step(), "prefill waits for nobody"
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


def test_in_card_nobody_waits() -> None:
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


def test_a_draft_that_lives_but_gives_nothing_is_not_waited_for_longer_than_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = engines()
    with OneProcess(target, draft, settings_of()) as both:
        stream = both.open(request_of([1, 2, 3], 6, Decoding.DRAFT_THEN_VERIFY, gamma=4))
        assert both.target.step(), "prefill waits for nobody"
        assert not both.target.step(), "a living draft gets its time"
        patience_s = both.settings.serving.engine_timeout_s
        now_s = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now_s + patience_s + 0.1)
        both.pool.beat("draft", EngineState.ATTACHED)
        assert both.target.step(), "the wait is over"
        assert len(stream.output) == 2
