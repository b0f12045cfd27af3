"""Contenders take turns: first with a few short texts, by which the setting of each system is
chosen, then with all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from rich.console import Console

from bench.contest import Completion, Contender, ContenderError, compete, faster_half
from bench.figures import median_curve
from bench.in_process import InProcess
from bench.line_up import thread_counts
from bench.measurement import Task
from bench.progress import shown
from bench.terminal import warm_up
from card.cache import SALT_BYTES
from card.cores import usable_cores

PILOT_PROMPTS, PILOT_TOKENS = 4, 48
"""Texts by which each system's fastest setting is found, and their length."""
MEASURE_EVERY = 8
"""Visits between two measurements of cost curves."""


class Rounds:
    """All turns, and the cost curves that are measured between them."""

    def __init__(self, console: Console, pair: InProcess, skipped: list[str]) -> None:
        self._console = console
        self._pair = pair
        self._skipped = skipped
        counts = sorted({*thread_counts(usable_cores()), pair.settings.target.threads})
        self._curves: dict[int, list[dict[int, float]]] = {count: [] for count in counts}
        self._visits = 0

    def try_settings(
        self,
        contenders: Sequence[Contender],
        tasks: Sequence[Task],
        has_time: Callable[[], bool],
    ) -> list[Completion]:
        """What settings make of a few short texts: all of them of the first, then the faster half
        of those of each system of the next one, and so on. Where time is up, of each system the
        first setting alone is tried."""
        able = warm_up(self._console, contenders, _of_phase("warm up", tasks)[0], has_time)
        prompts = list(dict.fromkeys(task.prompt for task in tasks))[:PILOT_PROMPTS]
        short = [
            replace(task, max_tokens=min(PILOT_TOKENS, task.max_tokens))
            for task in _of_phase("choosing settings", tasks)
        ]
        line_up: dict[float, list[Contender]] = {task.temperature: able for task in tasks}
        completions: list[Completion] = []
        for number, prompt in enumerate(prompts, 1):
            if completions and not has_time():
                break
            texts = [task for task in short if task.prompt == prompt]
            what = f"choosing settings, text {number} of {len(prompts)}"
            completions += self._take_turns(what, line_up, texts, has_time)
            line_up = faster_half(completions)
        return completions

    def run(
        self,
        line_up: Mapping[float, Sequence[Contender]],
        tasks: Sequence[Task],
        has_time: Callable[[], bool],
    ) -> list[Completion]:
        return self._take_turns("texts", line_up, _of_phase("texts", tasks), has_time)

    def curves(self) -> dict[int, dict[int, float]]:
        """Milliseconds of a target pass by rows, by threads."""
        return {count: median_curve(found) for count, found in self._curves.items()}

    def _take_turns(
        self,
        what: str,
        line_up: Mapping[float, Sequence[Contender]],
        tasks: Sequence[Task],
        has_time: Callable[[], bool],
    ) -> list[Completion]:
        def left(contender: Contender, error: ContenderError) -> None:
            self._skipped.append(f"{contender.system}, {contender.gamma} tokens: {error}")
            self._console.print(f"leaves: {error}", highlight=False, soft_wrap=True)

        texts = sum(len(line_up[task.temperature]) for task in tasks)
        with shown(self._console, what, texts) as advance:
            return compete(
                line_up, tasks, self._measure, advance, on_failure=left, has_time=has_time
            )

    def _measure(self) -> None:
        if self._visits % MEASURE_EVERY == 0:
            for count, found in self._curves.items():
                found.append(self._pair.engines.row_costs_ms(count))
        self._visits += 1


def _of_phase(name: str, tasks: Sequence[Task]) -> list[Task]:
    """Texts of one temperature may tell each other n-grams, but none of another phase, in which the
    same texts were written."""
    return [
        replace(
            task,
            salt=blake2b(f"{name}, {task.temperature}".encode(), digest_size=SALT_BYTES).digest(),
        )
        for task in tasks
    ]


def clock_of(minutes: float) -> Callable[[], bool]:
    """Whether there is time left, from now on."""
    ends = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() < ends
