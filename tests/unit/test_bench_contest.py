"""Turns, references and what counts as the same text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.activity import DraftActivity
from bench.contest import Contender, compete
from bench.line_up import thread_counts
from bench.measurement import Measurement, Task
from bench.prompts import Prompt


def task_of(name: str, temperature: float = 0.0) -> Task:
    return Task(Prompt(name, f"def {name}(", (1, 2, 3)), temperature, 7, 4)


TASKS = [task_of("a"), task_of("b"), task_of("c")]


def written(text: str, tokens: tuple[int, ...] | None = None) -> Measurement:
    return Measurement(
        text=text,
        tokens=tokens,
        generated=4,
        seconds=1.0,
        first_token_s=0.5,
        steps=4,
        drafted=0,
        accepted=0,
        queries=0,
        hits=0,
        draft=DraftActivity(0, 0, 0),
    )


def contender(system: str, complete: Callable[[Task], Measurement], gamma: int = 1) -> Contender:
    return Contender(system, "in_process", 1, 8, gamma, complete=complete)  # type: ignore[arg-type]


def test_every_contender_writes_a_text_before_the_next_text_is_begun() -> None:
    log: list[tuple[str, str]] = []

    def logging(system: str) -> Contender:
        def complete(task: Task) -> Measurement:
            log.append((task.prompt.id, system))
            return written("x")

        return contender(system, complete)

    systems = ["autoregressive", "draft_then_verify", "card"]
    compete([logging(system) for system in systems], TASKS, rounds=2)
    visits = [log[start : start + 3] for start in range(0, len(log), 3)]
    assert [{task for task, _ in visit} for visit in visits] == [{"a"}, {"b"}, {"c"}] * 2
    assert all({system for _, system in visit} == set(systems) for visit in visits)
    assert {visit[0][1] for visit in visits} == set(systems), "nobody always goes first"


def test_a_text_that_differs_from_the_targets_own_is_found_in_whatever_round() -> None:
    texts = iter(["x", "x", "x", "x", "y", "x"])
    alone = contender("autoregressive", lambda task: written("x"))
    card = contender("card", lambda task: written(next(texts)))
    completions = compete([alone, card], TASKS, rounds=2)
    different = [
        (c.contender.system, c.task.prompt.id, c.round) for c in completions if not c.equal
    ]
    assert different == [("card", "b", 1)]


def test_the_target_alone_is_held_to_what_it_wrote_first() -> None:
    texts = iter("xxxxyx")
    alone = contender("autoregressive", lambda task: written(next(texts)))
    assert [c.equal for c in compete([alone], TASKS, rounds=2)] == [True] * 4 + [False, True]


def test_equal_texts_of_different_tokens_differ() -> None:
    reference = written("ab", (1, 2))
    assert reference.writes_the_same_as(written("ab", (1, 2)))
    assert not reference.writes_the_same_as(written("ab", (3,)))


def test_a_text_without_tokens_is_compared_as_text() -> None:
    reference = written("ab", (1, 2))
    assert written("ab").writes_the_same_as(reference)
    assert not written("ac").writes_the_same_as(reference)


def test_the_same_prompt_at_another_temperature_has_a_reference_of_its_own() -> None:
    tasks = [TASKS[0], replace(TASKS[0], temperature=0.8)]
    alone = contender("autoregressive", lambda task: written(str(task.temperature)))
    assert all(completion.equal for completion in compete([alone], tasks, rounds=2))


def test_thread_counts_begin_at_one_and_end_at_all_cores() -> None:
    for cores in range(1, 130):
        counts = thread_counts(cores)
        assert counts[0] == 1
        assert counts[-1] == cores
        assert counts == sorted(set(counts))
    assert thread_counts(4) == [1, 2, 3, 4]
