"""How far the work is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 20.0


@contextmanager
def shown(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yields what to call after each of `total` pieces of work."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)
        return
    yield _Lines(console, what, total).advance


class _Lines:
    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._done = 0
        self._began_s = self._told_s = time.monotonic()

    def advance(self) -> None:
        self._done += 1
        now_s = time.monotonic()
        if now_s - self._told_s < _LINE_EVERY_S and self._done < self._total:
            return
        self._told_s = now_s
        taken_s = now_s - self._began_s
        self._console.print(
            f"{self._what}: {self._done} of {self._total}, {taken_s:.0f} s", highlight=False
        )
