"""The suite's tables for the terminal, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from bench.cells import WHO, Cells, Columns, known, shown, table
from bench.conditions import Conditions, Machine, named_engines
from bench.figures import Row
from bench.names import name_of
from bench.ratios import ALL, QUESTIONS, Ratio


@dataclass(frozen=True)
class Report:
    """Everything that `bench suite` found. The last table is for the Markdown alone.

    rows   every system at the setting that was chosen for it
    tried  every setting, on the few short texts that it was chosen by
    """

    conditions: Conditions
    ratios: list[Ratio]
    rows: list[Row]
    tried: list[Row]
    skipped: list[str]
    title: ClassVar[str] = "Benchmark suite"

    def content(self) -> dict[str, Any]:
        """What the JSON holds."""
        content = asdict(self)
        return {**content.pop("conditions"), **content}

    def markdown(self) -> str:
        run, machine = self.conditions, self.conditions.machine
        lines = [
            f"# {self.title}",
            "",
            f"`{run.command}`, {run.date}",
            "",
            f"{machine.processor}, {machine.cores} cores for every system, {machine.memory_gib:g} "
            f"GiB, {machine.system}, Python {machine.python}, {machine.software}, load "
            f"{machine.load:g} before the start; {named_engines(run.engines)} in {run.dtype}, "
            f"row-invariant: {'yes' if run.row_invariant else 'no'}; "
            f"{run.extent}. What the columns mean is written in `benchmarks/README.md`.",
            "",
            self.texts_said(),
        ]
        if run.reservation is not None:
            lines += ["", f"**{run.reservation}**"]
        lines += in_markdown(self.tables())
        if self.skipped:
            lines += ["", "Left out:", "", *(f"- {line}" for line in self.skipped)]
        return "\n".join(lines) + "\n"

    def texts_said(self) -> str:
        """Whose texts were compared, and what came of it."""
        compared = [
            row.texts_equal for row in (*self.rows, *self.tried) if row.texts_equal in (0, 1)
        ]
        ours = "equal the target's own" if all(compared) else "**DIFFER from the target's own**"
        return (
            f"The texts of all our systems {ours}. A peer computes in another order and draws "
            "other noise, so its texts are others; they are as long."
        )

    def tables(self) -> list[Cells]:
        ours = [row for row in self.rows if row.where == "in_process"]
        return [
            self._ratios(),
            *self._by_category(),
            table("Systems", _SPEED, self.rows),
            table("Speculation", _SPECULATION, [row for row in self.rows if row.speculates]),
            table("One target step", _STEP, [row for row in ours if row.ms_per_step is not None]),
            table("Settings tried", TRIED, self.tried),
        ]

    def _ratios(self) -> Cells:
        """Every ratio by temperature, over all prompts and over those of each collection."""
        kinds = [kind for kind in self._kinds() if "/" not in kind]
        answers: dict[tuple[str, float], dict[str, Ratio]] = {}
        for ratio in self.ratios:
            answers.setdefault((ratio.name, ratio.temperature), {})[ratio.kind] = ratio
        order = [question.name for question in QUESTIONS]
        rows = [
            [name, f"{temperature:g}", _best_of(found[ALL]), *shown(found, kinds)]
            for (name, temperature), found in sorted(
                answers.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
            )
        ]
        return Cells("Ratios, with 95 % intervals", ["ratio", "t", "to", *kinds], rows)

    def _by_category(self) -> list[Cells]:
        """The ratios that are judged by category, a table a temperature."""
        names = [question.name for question in QUESTIONS if question.by_category]
        found: list[Cells] = []
        for temperature in dict.fromkeys(ratio.temperature for ratio in self.ratios):
            here = [r for r in self.ratios if r.temperature == temperature and r.name in names]
            headings = [name for name in names if any(r.name == name for r in here)]
            rows = []
            for kind in dict.fromkeys(ratio.kind for ratio in here if "/" in ratio.kind):
                answers = {ratio.name: ratio for ratio in here if ratio.kind == kind}
                texts = max(ratio.texts for ratio in answers.values())
                rows.append([kind, str(texts), *shown(answers, headings)])
            if rows:
                title = f"By category, temperature {temperature:g}"
                found.append(Cells(title, ["category", "texts", *headings], rows))
        return found

    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(ratio.kind for ratio in self.ratios))


class Written(Protocol):
    """What a report is to be written."""

    def content(self) -> dict[str, Any]: ...

    def markdown(self) -> str: ...


def store(report: Written, file: Path) -> list[Path]:
    """Write the JSON and the Markdown beside it; returns their paths."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report.content(), indent=2) + "\n", encoding="utf-8")
    beside = file.with_suffix(".md")
    beside.write_text(report.markdown(), encoding="utf-8")
    return [file, beside]


def in_markdown(tables: Sequence[Cells]) -> Iterator[str]:
    """Lines, each table behind its title."""
    for cells in tables:
        yield from ("", f"## {cells.title}", "", f"| {' | '.join(cells.headings)} |")
        yield f"|{' --- |' * len(cells.headings)}"
        yield from (f"| {' | '.join(row)} |" for row in cells.rows)


def page(
    title: str, command: str, date: str, machine: Machine, how: str, tables: Sequence[Cells]
) -> str:
    """A page of Markdown: what ran where, and the tables. `how` ends the sentence on conditions."""
    lines = [
        f"# {title}",
        "",
        f"`{command}`, {date}",
        "",
        f"{machine.processor}, {machine.cores} cores, {machine.software}, load "
        f"{machine.load:g} before the start; {how}",
        *in_markdown(tables),
    ]
    return "\n".join(lines) + "\n"


def print_report(console: Console, report: Report) -> None:
    draw(console, report.tables()[:-1])
    console.print(report.texts_said().replace("**", ""), highlight=False, soft_wrap=True)


def draw(console: Console, tables: Sequence[Cells]) -> None:
    for cells in tables:
        drawn = Table(title=cells.title, title_justify="left", box=box.SIMPLE_HEAD)
        for place, heading in enumerate(cells.headings):
            drawn.add_column(heading, justify="right" if place else "left")
        for row in cells.rows:
            drawn.add_row(*row)
        console.print(drawn)


def _best_of(ratio: Ratio) -> str:
    return name_of(ratio.to)


TRIED: Columns[Row] = (*WHO, ("tokens/s", lambda row: f"{row.tokens_per_s:.0f}"))
_SPEED: Columns[Row] = (
    *WHO,
    ("texts", lambda row: str(row.texts)),
    ("tokens/s", lambda row: f"{row.tokens_per_s:.0f}"),
    ("quartiles", lambda row: "{:.0f}–{:.0f}".format(*row.tokens_per_s_quartiles)),
    ("first token ms", lambda row: f"{row.time_to_first_token_ms:.0f}"),
    ("same text", lambda row: {True: "equal", False: "DIFFER", None: ""}[row.texts_equal]),
    ("common prefix", lambda row: known(row.common_prefix, ".0%")),
)
_SPECULATION: Columns[Row] = (
    *WHO,
    ("agreement", lambda row: known(row.agreement, ".3f")),
    ("rows", lambda row: str(row.rows)),
    ("tokens/step", lambda row: f"{row.tokens_per_step:.2f}"),
    ("ideal", lambda row: known(row.ideal_tokens_per_step, ".2f")),
    ("of ideal", lambda row: known(row.share_of_ideal, ".0%")),
    ("accepted/step", lambda row: f"{row.mean_accepted:.2f}"),
    ("hit rate", lambda row: known(row.hit_rate, ".1%")),
    ("empty steps", lambda row: known(row.empty_query_share, ".1%")),
    ("target waits", lambda row: known(row.target_wait_share, ".1%")),
    ("draft idle", lambda row: known(row.draft_idle_share, ".1%")),
    ("ms/draft pass", lambda row: known(row.draft_ms_per_pass, ".2f")),
)
_STEP: Columns[Row] = (
    ("system", lambda row: name_of(row.system)),
    ("t", lambda row: f"{row.temperature:g}"),
    ("ms/step", lambda row: known(row.ms_per_step, ".2f")),
    ("query", lambda row: known(row.query_ms, ".2f")),
    ("forward", lambda row: known(row.forward_ms, ".2f")),
    ("verify", lambda row: known(row.verify_ms, ".2f")),
)
