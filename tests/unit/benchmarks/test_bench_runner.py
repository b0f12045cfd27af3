"""Turns, references, the choice of settings, and what counts as the same text."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from bench.measurement import Measurement, Task
from bench.prompts import Prompt
from bench.runner import (
    Completion,
    Contender,
    ContenderError,
    Runner,
)

Line_up = dict[float, list[Contender]]


def task_of(name: str, temperature: float = 0.0) -> Task:
    return Task(Prompt(name, f"def {name}(", (1, 2, 3)), temperature, 7, 4)


TASKS = [task_of("a"), task_of("b"), task_of("c")]


def written(text: str, tokens: tuple[int, ...] | None = None, speed: float = 4.0) -> Measurement:
    return Measurement(text, tokens, 4, seconds=4 / speed, first_token_s=0.5)


def contender(system: str, complete: Callable[[Task], Measurement], gamma: int = 1) -> Contender:
    return Contender(system, "in_process", 8, gamma, complete=complete)


def writing(system: str, text: str = "x", gamma: int = 1, speed: float = 4.0) -> Contender:
    return contender(system, lambda _: written(text, speed=speed), gamma)


def greedy(*contenders: Contender) -> Line_up:
    return {0.0: list(contenders)}


def run(line_up: Line_up, tasks: list[Task], skipped: list[str] | None = None) -> list[Completion]:
    return Runner(Console(quiet=True), [] if skipped is None else skipped).run(line_up, tasks)


def test_every_contender_writes_a_text_before_the_next_text_is_begun() -> None:
    log: list[tuple[str, str]] = []

    def logging(system: str) -> Contender:
        def complete(task: Task) -> Measurement:
            log.append((task.prompt.id, system))
            return written("x")

        return contender(system, complete)

    systems = ["autoregressive", "draft_then_verify", "card"]
    run(greedy(*map(logging, systems)), TASKS)
    visits = [log[start : start + 3] for start in range(0, len(log), 3)]
    assert [{task for task, _ in visit} for visit in visits] == [{"a"}, {"b"}, {"c"}]
    assert all({system for _, system in visit} == set(systems) for visit in visits)
    assert {visit[0][1] for visit in visits} == set(systems), "each is the first of some visit"


def test_text_is_found_when_it_differs_from_the_targets_own() -> None:
    texts = iter(["x", "y", "x"])
    card = contender("card", lambda _: written(next(texts)))
    completions = run(greedy(writing("autoregressive"), card), TASKS)
    different = [(c.contender.system, c.task.prompt.id) for c in completions if not c.equal]
    assert different == [("card", "b")]


def failing(task: Task) -> Measurement:
    if task.prompt.id == "b":
        raise ContenderError("out of words")
    return written("x")


def test_contender_leaves_when_it_fails_and_the_others_go_on() -> None:
    skipped: list[str] = []
    line_up = greedy(writing("autoregressive"), contender("openvino", failing), writing("card"))
    completions = run(line_up, TASKS, skipped)
    assert skipped == ["openvino: out of words"]
    wrote = [completion.contender.system for completion in completions]
    assert [wrote.count(name) for name in ("autoregressive", "openvino", "card")] == [3, 1, 3]


def test_no_prompt_is_begun_or_left_half_done_when_time_is_up() -> None:
    alone = writing("autoregressive")
    tasks = [task_of(name, temperature) for name in "abc" for temperature in (0.0, 0.8)]
    answers = iter([True, False])
    runner = Runner(Console(quiet=True), [])
    completions = runner.run({0.0: [alone], 0.8: [alone]}, tasks, lambda: next(answers))
    assert [(c.task.prompt.id, c.task.temperature) for c in completions] == [
        ("a", 0.0), ("a", 0.8), ("b", 0.0), ("b", 0.8),
    ]  # fmt: skip
