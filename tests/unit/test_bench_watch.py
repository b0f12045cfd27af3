"""What the suite sees of both loops while nobody times them."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, settings_of
from real_pair import TARGET
from tokenizers import Tokenizer

from bench.in_process import Loops
from bench.measurement import Task
from bench.prompts import Prompt
from bench.watch import Step, Watch
from card.cache import Decoding
from card.decoding import TargetTimes
from card.drafting import DraftTimes

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))


def test_hits_after_corrections_are_of_the_queries_right_behind_one() -> None:
    watch = Watch(
        steps=[
            Step(committed=5, drafted=4, hit=True),  # all accepted
            Step(committed=2, drafted=4, hit=True),  # corrects
            Step(committed=1, drafted=0, hit=False),  # a miss behind it
            Step(committed=1, drafted=3, hit=True),  # corrects
            Step(committed=4, drafted=3, hit=True),
        ]
    )
    assert watch.hit_rate_after_corrections == 0.5
    assert watch.committed_histogram() == {1: 2, 2: 1, 4: 1, 5: 1}
    assert Watch().hit_rate_after_corrections is None


def test_the_time_of_both_loops_is_told_apart() -> None:
    watch = Watch(
        target_passes=[(0, 40), (60, 100)],
        draft_passes=[(0, 50), (50, 80), (150, 200)],
        target_times=TargetTimes(steps=2, query=5, forward=60, walk=15, waiting=10),
        draft_times=DraftTimes(passes=3, choose=20, forward=80, grow=20, idle=60),
    )
    target, draft = watch.accounts()
    assert target.phases == {"query": 0.05, "forward": 0.6, "walk": 0.15, "waits": 0.1}
    assert target.known == pytest.approx(0.9)
    assert (target.passes, target.pass_ms["forward"]) == (2, 30e-6)
    assert draft.phases == {"choose": 0.1, "forward": 0.4, "grow": 0.1, "waits": 0.3}
    assert draft.known == pytest.approx(0.9)


def test_watching_changes_no_token_and_sees_every_step() -> None:
    target, draft = (
        FakeEngine(FakeModel(), tree=False),
        FakeEngine(FakeModel(agreement=0.8), tree=True),
    )
    task = Task(Prompt("a", "", (3, 1, 4, 1, 5)), 0.0, 11, 40)
    watch = Watch()
    with OneProcess(target, draft, settings_of()) as both:
        plain = Loops(both.pool, TOKENIZER, lambda *_: both.target, lambda _: both.draft)
        expected = plain.complete(task, Decoding.CARD, threads=1)
        loops = Loops(
            both.pool,
            TOKENIZER,
            lambda *_: watch.target(both.target, both.pool.card_slot(0)),
            lambda _: watch.draft(both.draft),
        )
        found = loops.complete(task, Decoding.CARD, threads=1)
    assert found.tokens == expected.tokens
    unasked = 2  # the first token comes with the prompt, the last needs no candidate
    assert sum(step.committed for step in watch.steps) >= task.max_tokens - unasked
    assert len(watch.target_passes) == found.steps
    assert (watch.target_times, watch.draft_times) == (both.target.times, both.draft.times)
    assert all(begin < end for begin, end in [*watch.target_passes, *watch.draft_passes])
