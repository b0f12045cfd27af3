"""The interleaving runner: contenders write the same texts in turns.

First they write a few short texts, by which the setting of each system is chosen, then all texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from rich.console import Console

from bench.measurement import Measurement, Task, geometric_mean
from card.cache import SALT_BYTES

PILOT_PROMPTS, PILOT_TOKENS, WARM_UP_TOKENS = 2, 48, 16
"""Texts by which each system's fastest setting is found, their length, and that of a warm-up."""

Clock = Callable[[], bool]


class ContenderError(RuntimeError):
    """A contender cannot go on; the message says why. The others can."""


@dataclass(frozen=True)
class Contender:
    """One system with one setting.

    system    a key of `SYSTEMS`, or a peer's mode
    where     `in_process`, `grpc` or `peer`
    rows      most rows of one target pass; where they adapt, those that a text begins with
    gamma     draft tokens before a verification; None: the system's own choice
    streams   texts at once
    lossless  it promises the text of the target alone, bit for bit
    """

    system: str
    where: str
    rows: int
    gamma: int | None = None
    streams: int = 1
    lossless: bool = field(default=True, kw_only=True)
    complete: Callable[[Task], Measurement] = field(compare=False, repr=False, kw_only=True)

    @property
    def key(self) -> str:
        """System, place and number of streams. Settings with one key compete with each other."""
        place = "@grpc" if self.where == "grpc" else ""
        return self.system + place + (f" x{self.streams}" if self.streams > 1 else "")


@dataclass(frozen=True)
class Completion:
    """One text by one contender; `equal`: it equals the target's own text."""

    contender: Contender
    task: Task
    measurement: Measurement
    equal: bool


def clock_of(minutes: float) -> Clock:
    """Whether there is time left, from now on."""
    ends = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() < ends


class Runner:
    """Lets contenders take turns.

    skipped  gets a line for each contender that cannot go on
    """

    def __init__(self, console: Console, skipped: list[str]) -> None:
        self._console = console
        self._skipped = skipped

    def try_settings(
        self, contenders: Sequence[Contender], tasks: Sequence[Task], has_time: Clock
    ) -> list[Completion]:
        """Let all settings write a few short texts, while there is time."""
        warm = of_phase("warm up", tasks[:1], WARM_UP_TOKENS)
        able = [c.contender for c in self.run({warm[0].temperature: contenders}, warm)]
        prompts = list(dict.fromkeys(task.prompt for task in tasks))[:PILOT_PROMPTS]
        few = [task for task in tasks if task.prompt in prompts]
        line_up = {task.temperature: able for task in few}
        return self.run(line_up, of_phase("choosing settings", few, PILOT_TOKENS), has_time)

    def run(
        self,
        line_up: Mapping[float, Sequence[Contender]],
        tasks: Sequence[Task],
        has_time: Clock = lambda: True,
    ) -> list[Completion]:
        """Every contender of a temperature writes every text of that temperature.

        All write a text before the next one is begun, so that noise hits all alike, and each visit
        begins with another contender, so that none always follows the same one. The reference is
        what the first contender, the target alone, wrote. A contender that fails leaves; if the
        reference fails, `ContenderError` is raised.

        has_time  asked before each prompt but the first; without it no further prompt is begun
        """
        left: set[Contender] = set()
        completions: list[Completion] = []
        for visit, task in enumerate(tasks):
            # All temperatures of a prompt, or none.
            if visit and task.prompt != tasks[visit - 1].prompt and not has_time():
                break
            able = [contender for contender in line_up[task.temperature] if contender not in left]
            said = f"text {visit + 1} of {len(tasks)}, by {len(able)}: {task.prompt.id}"
            self._console.print(said, highlight=False)
            first = visit % len(able)
            found: dict[Contender, Measurement] = {}
            for contender in (*able[first:], *able[:first]):
                try:
                    found[contender] = contender.complete(task)
                except ContenderError as error:
                    if contender is able[0]:
                        raise
                    left.add(contender)
                    self._skipped.append(f"{contender.key}: {error}")
                    self._console.print(f"left out: {error}", highlight=False, soft_wrap=True)
            completions += [
                Completion(who, task, found[who], found[who].writes_the_same_as(found[able[0]]))
                for who in able
                if who in found
            ]
        return completions


def fastest_settings(completions: Sequence[Completion]) -> dict[float, list[Contender]]:
    """By temperature, the setting of every system that was the fastest over most texts, in the
    order of the systems."""
    speeds: dict[float, dict[Contender, list[float]]] = {}
    for c in completions:
        of_contender = speeds.setdefault(c.task.temperature, {})
        of_contender.setdefault(c.contender, []).append(c.measurement.tokens_per_s)
    found: dict[float, list[Contender]] = {}
    for temperature, of_contender in speeds.items():
        best: dict[str, tuple[tuple[int, float], Contender]] = {}
        for contender, reached in of_contender.items():
            worth = (len(reached), geometric_mean(reached))
            if contender.key not in best or worth > best[contender.key][0]:
                best[contender.key] = (worth, contender)
        found[temperature] = [contender for _, contender in best.values()]
    return found


def of_phase(name: str, tasks: Sequence[Task], most_tokens: int | None = None) -> list[Task]:
    """Texts of one temperature may share n-grams, but not with the same texts of another phase."""
    return [
        replace(
            task,
            max_tokens=min(task.max_tokens, most_tokens or task.max_tokens),
            salt=blake2b(f"{name}, {task.temperature}".encode(), digest_size=SALT_BYTES).digest(),
        )
        for task in tasks
    ]
