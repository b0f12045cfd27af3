"""What is measured in process: texts, counters, idle time; and the draft's foresight."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of
from real_pair import TARGET
from tokenizers import Tokenizer

from bench.activity import DraftActivity
from bench.contest import Completion, Contender, System
from bench.foresight import ranks_of, read_along
from bench.in_process import Loops, parameters_of, text_of
from bench.measurement import Measurement, Task
from bench.prompts import Prompt
from bench.streams_figures import StreamedText, row_of
from card.drafting import DraftLoop, make_drafters
from card.sampling import rank_candidates
from card.speculation.pacing import PACINGS

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
MODEL = FakeModel()
TASK = Task(Prompt("a", "", (3, 1, 4, 1, 5)), 0.0, 11, 40)
SAMPLED = Task(Prompt("a", "", (3, 1, 4, 1, 5)), 0.8, 11, 40)


@contextmanager
def loops_of(draft: FakeModel = MODEL) -> Iterator[tuple[Loops, OneProcess]]:
    target, second = FakeEngine(MODEL, tree=False), FakeEngine(draft, tree=True)
    with OneProcess(target, second, settings_of()) as both:
        yield Loops(both.pool, TOKENIZER, lambda *_: both.target, lambda _: both.draft), both


def text_alone(task: Task) -> tuple[int, ...]:
    request = request_of(task.prompt.tokens, task.max_tokens, parameters=parameters_of(task))
    return tuple(autoregressive(MODEL, request))


@pytest.mark.parametrize("task", [TASK, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("decoding", list(PACINGS), ids=str)
def test_every_completion_is_the_targets_text_of_exactly_max_tokens(
    task: Task, decoding: str
) -> None:
    expected = text_alone(task)
    with loops_of() as (loops, both):
        for _ in range(3):
            written = loops.complete(task, decoding, threads=1, gamma=4)
            assert written.tokens == expected
            assert written.text == text_of(TOKENIZER, task, list(expected))
            assert written.generated == task.max_tokens
        assert isinstance(both.target_engine, FakeEngine)
        assert both.target_engine.open_sessions == 0


def test_counters_are_those_of_one_completion() -> None:
    with loops_of() as (loops, _):
        first, second = (
            loops.complete(TASK, "draft_then_verify", threads=1, gamma=4) for _ in range(2)
        )
    assert (first.steps, first.accepted, first.hits) == (second.steps, second.accepted, second.hits)
    assert first.steps < TASK.max_tokens
    assert first.steps + first.accepted == TASK.max_tokens
    assert first.phases is not None
    assert first.phases.steps == first.steps - 1, "the first token comes with the prompt"


def test_a_draft_is_idle_only_while_a_session_is_open() -> None:
    now = 0
    with loops_of() as (_, both):
        drafters = make_drafters(FakeEngine(MODEL, tree=True), settings_of())
        draft = DraftLoop(drafters, both.pool, clock_ns=lambda: now)

        def idle_at(moment: int) -> int:
            nonlocal now
            now = moment
            draft.step()
            return int(both.pool.header["draft_waiting_ns"])

        assert [idle_at(0), idle_at(1_000)] == [0, 0], "nothing was open"
        stream = both.open(request_of([3, 1, 4, 1, 5], 8, "draft_then_verify", gamma=1))
        assert idle_at(2_000) == 0, "the pass of γ = 1"
        assert DraftActivity.told_by(both.pool) == DraftActivity.told_in(draft.times)
        assert draft.times.passes == 1
        assert [idle_at(3_000), idle_at(3_500)] == [0, 500], "told while it waits"
        stream.slot.close()
        assert idle_at(4_000) == idle_at(90_000) == 1_000, "the time between requests is nobody's"


@pytest.mark.parametrize("task", [TASK, SAMPLED], ids=["greedy", "sampled"])
def test_a_rank_says_whether_the_draft_prefers_another_id(task: Task) -> None:
    draft = FakeModel(seed=5)
    tokens = text_alone(task)
    text = [*task.prompt.tokens, *tokens]
    ids = np.arange(draft.vocabulary)[None]
    expected = []
    for at in range(len(task.prompt.tokens), len(text)):
        scores = rank_candidates(
            ids,
            draft.row_after(text[:at])[None],
            np.zeros(1, np.float32),
            np.array([at]),
            parameters_of(task),
        )[0]
        expected.append(int(scores.argmax() != text[at]))
    assert ranks_of(FakeEngine(draft, tree=True), task, tokens).tolist() == expected
    assert any(itertools.chain(expected))


def test_every_text_is_read_along_once_whoever_of_the_target_alone_wrote_it() -> None:
    other = Task(Prompt("b", "", (2, 7)), 0.0, 12, 40)

    def wrote(system: System, threads: int, task: Task) -> Completion:
        contender = Contender(system, "in_process", threads, 1, complete=lambda task: measured)
        measured = Measurement("", text_alone(task), 40, 1.0, 0.1, 1)
        return Completion(contender, task, measured, True)

    completions = [
        wrote("autoregressive", 1, TASK),
        wrote("autoregressive", 2, TASK),
        wrote("autoregressive", 1, SAMPLED),
        wrote("card", 1, other),
        wrote("autoregressive", 2, other),
        wrote("draft_alone", 2, Task(other.prompt, 0.0, 13, 40)),
    ]
    ranks = read_along(FakeEngine(MODEL, tree=True), completions)
    assert {temperature: len(texts) for temperature, texts in ranks.items()} == {0.0: 2, 0.8: 1}


def test_latency_is_per_token_and_the_rate_that_of_all_streams() -> None:
    texts = [
        StreamedText(0.0, [(0.1, 1), (0.2, 5), (0.4, 2)]),  # gaps 100 ms for 5 tokens, 200 ms for 2
        StreamedText(0.0, [(0.3, 1), (0.5, 1)]),
    ]
    row = row_of("card", 2, texts, 2.0, True)
    assert row.tokens_per_s == pytest.approx(10 / 0.5)
    assert row.full_tokens_per_s == pytest.approx(9 / 0.4)
    assert row.p50_ms == pytest.approx(20.0)  # 20 ms five times, 100 ms twice, 200 ms once
    assert row.gap_p99_ms == pytest.approx(200.0)
    assert row.first_token_ms == pytest.approx(200.0)
