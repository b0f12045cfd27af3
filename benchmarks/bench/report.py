"""What a run found, as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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
        """What the JSON holds."""
        content = asdict(self)
        return {"title": content.pop("title"), **content.pop("conditions"), **content}

    def markdown(self) -> str:
        run = self.conditions
        equal = "equal" if self.texts_are_equal else "DIFFER from"
        lines = [f"# bench {self.title}", "", f"`{run['command']}`, {run['date']}", ""]
        lines += [described(run), "", f"Texts of lossless systems {equal} the target's own."]
        lines += [*self._ratios(), *_table("Speed", SPEED, self.rows)]
        ours = [row for row in self.rows if row["where"] != "peer"]
        lines += _table("A target step", STEP, ours)
        lines += _table("Settings tried", TRIED, self.tried)
        if self.skipped:
            lines += ["", "Left out:", "", *(f"- {line}" for line in self.skipped)]
        return "\n".join(lines) + "\n"

    def _ratios(self) -> Iterator[str]:
        """Every ratio by temperature, over all prompts and over those of each collection."""
        kinds = [k for k in dict.fromkeys(r.kind for r in self.ratios) if "/" not in k]
        answers: dict[tuple[str, float], dict[str, Ratio]] = {}
        for ratio in self.ratios:
            answers.setdefault((ratio.name, ratio.temperature), {})[ratio.kind] = ratio
        rows = [
            [name, f"{temperature:g}", found[ALL].to, str(found[ALL].texts)]
            + [str(found[kind]) if kind in found else "" for kind in kinds]
            for (name, temperature), found in answers.items()
        ]
        headings = ["ratio", "t", "to", "texts", *kinds]
        return _filled("Ratios of tokens/s, with 95 % intervals", headings, rows)

    def store(self, file: Path) -> list[Path]:
        """Write the JSON and the Markdown beside it; returns their paths."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.content(), indent=2) + "\n", encoding="utf-8")
        beside = file.with_suffix(".md")
        beside.write_text(self.markdown(), encoding="utf-8")
        return [file, beside]


Column = tuple[str, Callable[[Row], str]]


def _table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    headings = [heading for heading, _ in columns]
    return _filled(title, headings, [[show(row) for _, show in columns] for row in rows])


def _filled(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table without the columns that are empty in every row; none without rows."""
    if rows:
        kept = [place for place, _ in enumerate(headings) if any(row[place] for row in rows)]
        yield from ("", f"## {title}", "")
        for row in (headings, ["---"] * len(headings), *rows):
            yield f"| {' | '.join(row[place] for place in kept)} |"


def _figure(heading: str, field: str, form: str) -> Column:
    """A column of a figure, empty where a row has none."""

    def show(row: Row) -> str:
        value = row.get(field)
        return "" if value is None else format(value, form)

    return heading, show


WHO: tuple[Column, ...] = (
    _figure("system", "system", ""),
    ("streams", lambda row: str(row["streams"]) if "full_tokens_per_s" in row else ""),
    _figure("γ", "gamma", "d"),
    ("where", lambda row: str(row["where"]).replace("_", " ")),
    _figure("t", "temperature", "g"),
)
TRIED: tuple[Column, ...] = (*WHO, _figure("tokens/s", "tokens_per_s", ".0f"))
SPEED: tuple[Column, ...] = (
    *WHO,
    _figure("texts", "texts", "d"),
    _figure("tokens/s", "tokens_per_s", ".0f"),
    _figure("all open", "full_tokens_per_s", ".0f"),
    _figure("p50 ms/token", "p50_ms", ".2f"),
    _figure("p99 ms/token", "p99_ms", ".2f"),
    _figure("p99 gap ms", "gap_p99_ms", ".1f"),
    _figure("first token ms", "time_to_first_token_ms", ".0f"),
    ("same text", lambda row: {True: "equal", False: "DIFFER", None: ""}[row.get("texts_equal")]),
    ("lossless", lambda row: {True: "yes", False: "no", None: ""}[row.get("lossless")]),
    _figure("right", "right", "d"),
)
STEP: tuple[Column, ...] = (
    *WHO,
    _figure("rows", "rows", "d"),
    _figure("tokens/step", "tokens_per_step", ".2f"),
    _figure("hit rate", "hit_rate", ".1%"),
    _figure("draft idle", "draft_idle_share", ".1%"),
    _figure("ms/draft pass", "draft_ms_per_pass", ".2f"),
    _figure("draft ms/token", "draft_ms_per_token", ".2f"),
    _figure("rolled back", "rollback_share", ".0%"),
    _figure("not the target's", "foreign_share", ".1%"),
    _figure("ms/step", "ms_per_step", ".2f"),
    _figure("query ms", "query_ms", ".2f"),
    _figure("forward ms", "forward_ms", ".2f"),
    _figure("verify ms", "verify_ms", ".2f"),
)
