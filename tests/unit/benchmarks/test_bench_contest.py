"""Turns, references and what counts as the same text."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from bench.contest import Contender, ContenderError, compete, faster_half, fastest_settings
from bench.measurement import Measurement, Task
from bench.prompts import Prompt
from bench.terminal import warm_up


def task_of(name: str, temperature: float = 0.0) -> Task:
    return Task(Prompt(name, f"def {name}(", (1, 2, 3)), temperature, 7, 4)


TASKS = [task_of("a"), task_of("b"), task_of("c")]


def written(text: str, tokens: tuple[int, ...] | None = None, speed: float = 4.0) -> Measurement:
    return Measurement(text, tokens, 4, seconds=4 / speed, first_token_s=0.5, steps=4)


def contender(system: str, complete: Callable[[Task], Measurement], gamma: int = 1) -> Contender:
    return Contender(system, "in_process", 1, 8, gamma, complete=complete)


def greedy(*contenders: Contender) -> dict[float, list[Contender]]:
    return {0.0: list(contenders)}


def test_every_contender_writes_a_text_before_the_next_text_is_begun() -> None:
    log: list[tuple[str, str]] = []

    def logging(system: str) -> Contender:
        def complete(task: Task) -> Measurement:
            log.append((task.prompt.id, system))
            return written("x")

        return contender(system, complete)

    systems = ["autoregressive", "draft_then_verify", "card"]
    compete(greedy(*map(logging, systems)), TASKS)
    visits = [log[start : start + 3] for start in range(0, len(log), 3)]
    assert [{task for task, _ in visit} for visit in visits] == [{"a"}, {"b"}, {"c"}]
    assert all({system for _, system in visit} == set(systems) for visit in visits)
    assert {visit[0][1] for visit in visits} == set(systems), "nobody always goes first"


def test_a_text_that_differs_from_the_targets_own_is_found() -> None:
    texts = iter(["x", "y", "x"])
    alone = contender("autoregressive", lambda task: written("x"))
    card = contender("card", lambda task: written(next(texts)))
    completions = compete(greedy(alone, card), TASKS)
    different = [(c.contender.system, c.task.prompt.id) for c in completions if not c.equal]
    assert different == [("card", "b")]


def test_who_cannot_go_on_leaves_and_the_others_do_not_notice() -> None:
    def fail(task: Task) -> Measurement:
        if task.prompt.id == "b":
            raise ContenderError("out of words")
        return written("x")

    alone = contender("autoregressive", lambda task: written("x"))
    told: list[str] = []
    completions = compete(
        greedy(alone, contender("openvino", fail), contender("card", lambda task: written("x"))),
        TASKS,
        on_failure=lambda who, error: told.append(f"{who.system}: {error}"),
    )
    assert told == ["openvino: out of words"]
    wrote = [completion.contender.system for completion in completions]
    assert [wrote.count(name) for name in ("autoregressive", "openvino", "card")] == [3, 1, 3]


def test_no_prompt_is_begun_when_time_is_up_and_none_is_left_half() -> None:
    alone = contender("autoregressive", lambda task: written("x"))
    tasks = [task_of(name, temperature) for name in "abc" for temperature in (0.0, 0.8)]
    answers = iter([True, False])
    line_up = {0.0: [alone], 0.8: [alone]}
    completions = compete(line_up, tasks, has_time=lambda: next(answers))
    assert [(c.task.prompt.id, c.task.temperature) for c in completions] == [
        ("a", 0.0), ("a", 0.8), ("b", 0.0), ("b", 0.8),
    ]  # fmt: skip


def test_where_time_is_up_each_system_has_the_first_of_its_settings_and_the_reference() -> None:
    def at(system: str, gamma: int) -> Contender:
        return contender(system, lambda task: written("x"), gamma)

    alone, pearl, card = at("autoregressive", 2), at("pearl", 1), at("card", 1)
    everyone = [alone, at("autoregressive", 1), pearl, at("pearl", 2), card]
    tried = compete(greedy(*everyone), TASKS[:1], has_time=lambda: False)
    assert [completion.contender for completion in tried] == [alone, pearl, card]
    able = warm_up(Console(quiet=True), everyone, TASKS[0], lambda: False)
    assert able == [alone, pearl, card]


def test_each_temperature_has_the_settings_that_are_fastest_there() -> None:
    speeds = {4: {0.0: 9.0, 0.8: 2.0}, 2: {0.0: 5.0, 0.8: 4.0}}

    def turns(gamma: int) -> Contender:
        return contender(
            "draft_then_verify",
            lambda task: written("x", speed=speeds[gamma][task.temperature]),
            gamma,
        )

    alone = contender("autoregressive", lambda task: written("x"))
    tasks = [task_of(name, temperature) for name in "ab" for temperature in (0.0, 0.8)]
    everyone = [alone, turns(4), turns(2)]
    chosen = fastest_settings(compete({0.0: everyone, 0.8: everyone}, tasks))
    assert [c.gamma for c in chosen[0.0]] == [1, 4]
    assert [c.gamma for c in chosen[0.8]] == [1, 2]
    assert chosen[0.0][0].system == "autoregressive", "the target alone stays the reference"


def test_texts_are_compared_by_their_tokens_where_both_have_some() -> None:
    reference = written("ab", (1, 2))
    assert reference.writes_the_same_as(written("ab", (1, 2)))
    assert not reference.writes_the_same_as(written("ab", (3,)))
    assert written("ab").writes_the_same_as(reference)
    assert not written("ac").writes_the_same_as(reference)


def test_of_a_systems_settings_the_faster_half_goes_on_and_the_fastest_of_these_wins() -> None:
    def at(gamma: int, *speeds: float) -> Contender:
        left = iter(speeds)
        return contender("pearl", lambda task: written("x", speed=next(left)), gamma)

    alone = contender("autoregressive", lambda task: written("x"))
    tried = [at(1, 9.0, 2.0), at(2, 8.0, 3.0), at(4, 7.0), at(8, 1.0)]
    found = compete(greedy(alone, *tried), TASKS[:1])
    assert faster_half(found) == greedy(alone, *tried[:2])
    found += compete(faster_half(found), TASKS[1:2])
    assert fastest_settings(found) == greedy(alone, tried[1]), "one that left at 7.0 is out"
