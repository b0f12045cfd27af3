"""Tables as texts, before anybody draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.figures import Row
from bench.names import name_of, place_of, setting_of
from bench.ratios import Ratio


@dataclass(frozen=True)
class Cells:
    """A table as texts."""

    title: str
    headings: list[str]
    rows: list[list[str]]


Shown = TypeVar("Shown")
Columns = Sequence[tuple[str, Callable[[Shown], str]]]

WHO: Columns[Row] = (
    ("system", lambda row: name_of(row.system)),
    ("setting", setting_of),
    ("where", lambda row: place_of(row.where)),
    ("t", lambda row: f"{row.temperature:g}"),
)


def table(title: str, columns: Columns[Shown], rows: Sequence[Shown]) -> Cells:
    headings = [heading for heading, _ in columns]
    return Cells(title, headings, [[show(row) for _, show in columns] for row in rows])


def known(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def shown(answers: Mapping[str, Ratio], wanted: Sequence[str]) -> list[str]:
    """Each ratio with its interval; an empty text for one that there is not."""
    found = [answers.get(name) for name in wanted]
    return ["" if r is None else f"{r.value:.2f} ({r.low:.2f}–{r.high:.2f})" for r in found]
