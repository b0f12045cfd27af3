"""What is measured in process: texts, counters, idle time, and many streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of
from real_pair import TARGET
from tokenizers import Tokenizer

from bench.in_process import Loops, Text, parameters_of, text_of
from bench.measurement import Task
from bench.prompts import Prompt
from bench.streams import measured

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
@pytest.mark.parametrize("decoding", ["autoregressive", "card"])
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
    for name in ("steps", "accepted", "hits"):
        assert first.counts[name] == second.counts[name]
    assert first.counts["steps"] < TASK.max_tokens
    assert first.counts["steps"] + first.accepted == TASK.max_tokens
    later = first.counts["steps"] - 1
    assert first.counts["later_steps"] == later, "the first token comes with the prompt"


def test_latency_is_per_token_and_the_rate_that_of_all_streams() -> None:
    texts = [
        Text(0.0, [(0.1, 1), (0.2, 5), (0.4, 2)], 8),  # gaps 100 ms for 5 tokens, 200 ms for 2
        Text(0.0, [(0.3, 1), (0.5, 1)], 2),
    ]
    found = measured(2, texts, Counter())
    assert found.tokens_per_s == pytest.approx(10 / 0.5)
    assert found.latency["full_tokens_per_s"] == pytest.approx(9 / 0.4)
    assert found.latency["p50_ms"] == pytest.approx(20.0)  # 20 ms five times, 100 twice, 200 once
    assert found.latency["gap_p99_ms"] == pytest.approx(200.0, rel=0.02)
    assert found.first_token_s == pytest.approx(0.2)


def test_streams_write_what_each_writes_alone() -> None:
    tasks = [Task(Prompt(str(n), "", (3, 1, n)), 0.0, n, 12) for n in range(5)]
    with loops_of() as (loops, _):
        found = []
        for name in ("autoregressive", "card"):
            loops.use(1, name)
            found.append(measured(1, *loops.write(tasks, 1, name)))
    alone, together = found
    assert alone.tokens == tuple(token for task in tasks for token in text_alone(task))
    assert together.writes_the_same_as(alone)
    assert together.counts["steps"] < alone.counts["steps"] == 60
