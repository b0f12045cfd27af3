"""The report of a run as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.conditions import described
from bench.figures import ALL, Ratio, Row


@dataclass(frozen=True)
class Report:
    """Everything that a run of the command `title` found.

    rows   every system at the setting that was chosen for it
    tried  every setting, on the few short texts that it was chosen by
    """

    title: str
    conditions: dict[str, Any]
    ratios: list[Ratio]
    rows: list[Row]
    tried: list[Row]
    skipped: list[str]

    @property
    def texts_are_equal(self) -> bool:
        """Whether every text that has to be the target's own is."""
        return all(row.get("texts_equal") is not False for row in (*self.rows, *self.tried))

    def content(self) -> dict[str, Any]:
        """The content of the JSON."""
        content = asdict(self)
        return {"title": content.pop("title"), **content.pop("conditions"), **content}

    def markdown(self) -> str:
        run = self.conditions
        equal = "equal" if self.texts_are_equal else "DIFFER from"
        lines = [f"# bench {self.title}", "", f"`{run['command']}`, {run['date']}", ""]
        lines += [described(run), "", f"Texts of lossless systems {equal} the target's own."]
        lines += [*ratio_table(self.ratios), *_table("Speed", SPEED, self.rows)]
        ours = [row for row in self.rows if row["where"] != "peer"]
        lines += _table("A target step", STEP, ours)
        lines += _table("Settings tried", TRIED, self.tried)
        if self.skipped:
            lines += ["", "Left out:", "", *(f"- {line}" for line in self.skipped)]
        return "\n".join(lines) + "\n"

    def store(self, file: Path) -> list[Path]:
        """Write the JSON and the Markdown beside it; returns their paths."""
        return store(file, self.content(), self.markdown())


def store(file: Path, content: Mapping[str, Any], markdown: str) -> list[Path]:
    """Write the figures as JSON and the Markdown beside it; returns their paths."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside = file.with_suffix(".md")
    beside.write_text(markdown, encoding="utf-8")
    return [file, beside]


def ratio_table(ratios: Sequence[Ratio]) -> Iterator[str]:
    """Every ratio by temperature, over all prompts and over those of each collection."""
    kinds = [k for k in dict.fromkeys(r.kind for r in ratios) if "/" not in k]
    answers: dict[tuple[str, float], dict[str, Ratio]] = {}
    for ratio in ratios:
        answers.setdefault((ratio.name, ratio.temperature), {})[ratio.kind] = ratio
    rows = [
        [name, f"{temperature:g}", found[ALL].to, str(found[ALL].texts)]
        + [str(found[kind]) if kind in found else "" for kind in kinds]
        for (name, temperature), found in answers.items()
    ]
    headings = ["ratio", "t", "to", "texts", *kinds]
    return _filled("Ratios of tokens/s, with 95 % intervals", headings, rows)


def table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    for row in (headings, ["---"] * len(headings), *rows):
        yield f"| {' | '.join(map(str, row))} |"


Column = tuple[str, str, str]
"""Heading, field of a row, and its format; a format of words names a text for each value."""
_TEXTS: dict[str, dict[bool, str]] = {
    "equality": {True: "equal", False: "DIFFER"},
    "yes or no": {True: "yes", False: "no"},
}


def _table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    shown = [
        row
        | {"where": str(row["where"]).replace("_", " ")}
        | ({"at_once": row["streams"]} if "full_tokens_per_s" in row else {})
        for row in rows
    ]
    headings = [heading for heading, _, _ in columns]
    cells = [[_cell(row.get(field), form) for _, field, form in columns] for row in shown]
    return _filled(title, headings, cells)


def _cell(value: Any, form: str) -> str:
    """Empty where a row has no such figure."""
    if value is None:
        return ""
    return _TEXTS[form][value] if form in _TEXTS else format(value, form)


def _filled(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table below its title, without the columns that are empty in every row. Without rows:
    nothing."""
    if rows:
        kept = [place for place, _ in enumerate(headings) if any(row[place] for row in rows)]
        yield from ("", f"## {title}", "")
        shown = [[row[place] for place in kept] for row in (headings, *rows)]
        yield from table(shown[0], shown[1:])


WHO: tuple[Column, ...] = (
    ("system", "system", ""),
    ("streams", "at_once", "d"),
    ("γ", "gamma", "d"),
    ("where", "where", ""),
    ("t", "temperature", "g"),
)
TRIED: tuple[Column, ...] = (*WHO, ("tokens/s", "tokens_per_s", ".0f"))
SPEED: tuple[Column, ...] = (
    *WHO,
    ("texts", "texts", "d"),
    ("tokens/s", "tokens_per_s", ".0f"),
    ("all open", "full_tokens_per_s", ".0f"),
    ("p50 ms/token", "p50_ms", ".2f"),
    ("p99 ms/token", "p99_ms", ".2f"),
    ("p99 gap ms", "gap_p99_ms", ".1f"),
    ("first token ms", "time_to_first_token_ms", ".0f"),
    ("same text", "texts_equal", "equality"),
    ("lossless", "lossless", "yes or no"),
    ("right", "right", "d"),
)
STEP: tuple[Column, ...] = (
    *WHO,
    ("rows", "rows", "d"),
    ("tokens/step", "tokens_per_step", ".2f"),
    ("hit rate", "hit_rate", ".1%"),
    ("draft idle", "draft_idle_share", ".1%"),
    ("ms/draft pass", "draft_ms_per_pass", ".2f"),
    ("draft ms/token", "draft_ms_per_token", ".2f"),
    ("rolled back", "rollback_share", ".0%"),
    ("not the target's", "foreign_share", ".1%"),
    ("ms/step", "ms_per_step", ".2f"),
    ("query ms", "query_ms", ".2f"),
    ("forward ms", "forward_ms", ".2f"),
    ("verify ms", "verify_ms", ".2f"),
)
