"""Tables for the terminal, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from bench.conditions import Conditions, named_engines
from bench.figures import Figures, Row
from bench.names import name_of, place_of


@dataclass(frozen=True)
class Column:
    heading: str
    show: Callable[[Row], str]


def _known(value: float | int | None, form: str) -> str:
    return "" if value is None else format(value, form)


WHO = (
    Column("system", lambda row: name_of(row.system)),
    Column("where", lambda row: place_of(row.where)),
    Column("t", lambda row: f"{row.temperature:g}"),
)
PAIR = (
    Column("t", lambda row: f"{row.temperature:g}"),
    Column("agreement", lambda row: _known(row.agreement, ".3f")),
    Column("rows", lambda row: str(row.rows)),
    Column("ideal tokens/step", lambda row: _known(row.ideal_tokens_per_step, ".2f")),
)
SETTING = (
    Column("threads", lambda row: str(row.threads)),
    Column("γ", lambda row: _known(row.gamma, "d")),
    Column("width", lambda row: _known(row.width, "d")),
    Column("rows", lambda row: str(row.rows)),
)
PACE = (
    Column("tokens/s", lambda row: f"{row.tokens_per_s:.0f}"),
    Column("quartiles", lambda row: "{:.0f}–{:.0f}".format(*row.tokens_per_s_quartiles)),
    Column("ratio", lambda row: f"{row.ratio_to_autoregressive:.2f}"),
)
SPEED = (
    *WHO,
    *PACE,
    Column("of in process", lambda row: _known(row.ratio_to_in_process, ".0%")),
    Column("rows", lambda row: str(row.rows)),
    Column("of ideal", lambda row: _known(row.share_of_ideal, ".0%")),
    Column("decoding", lambda row: _known(row.decoding_ratio, ".2f")),
    Column("decoding of ideal", lambda row: _known(row.decoding_share_of_ideal, ".0%")),
    Column("first token ms", lambda row: f"{row.time_to_first_token_ms:.0f}"),
    Column("texts", lambda row: "equal" if row.texts_equal else "DIFFER"),
)
SPECULATION = (
    *WHO,
    Column("agreement", lambda row: _known(row.agreement, ".3f")),
    Column("ideal tokens/step", lambda row: _known(row.ideal_tokens_per_step, ".2f")),
    Column("tokens/step", lambda row: f"{row.tokens_per_step:.2f}"),
    Column("accepted/step", lambda row: f"{row.mean_accepted:.2f}"),
    Column("hit rate", lambda row: _known(row.hit_rate, ".1%")),
    Column("empty steps", lambda row: _known(row.empty_query_share, ".1%")),
    Column("target waits", lambda row: _known(row.target_wait_share, ".1%")),
    Column("draft idle", lambda row: _known(row.draft_idle_share, ".1%")),
    Column("ms/draft pass", lambda row: _known(row.draft_ms_per_pass, ".2f")),
)
STEP = (
    *WHO,
    Column("ms/step", lambda row: _known(row.ms_per_step, ".2f")),
    Column("query", lambda row: _known(row.query_ms, ".2f")),
    Column("forward", lambda row: _known(row.forward_ms, ".2f")),
    Column("walk", lambda row: _known(row.walk_ms, ".2f")),
)
SWEEP = (*WHO, *SETTING, *PACE)


def pair_rows(figures: Figures) -> list[Row]:
    """Whose `PAIR` says what the two models allow, whatever decodes: by temperature."""
    return [row for row in figures.rows if (row.system, row.where) == ("card", "in_process")]


def _tables(figures: Figures) -> list[tuple[str, Sequence[Column], list[Row]]]:
    rows = figures.rows
    return [
        ("The pair", PAIR, pair_rows(figures)),
        ("Speed", SPEED, rows),
        ("Speculation", SPECULATION, [row for row in rows if row.system != "autoregressive"]),
        ("One target step", STEP, [row for row in rows if row.ms_per_step is not None]),
        ("All settings", SWEEP, figures.swept),
    ]


def print_tables(console: Console, figures: Figures) -> None:
    for title, columns, rows in _tables(figures):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for column in columns:
            names = column in WHO
            justify: Literal["left", "right"] = "left" if names else "right"
            table.add_column(column.heading, justify=justify, no_wrap=names, overflow="fold")
        for row in rows:
            style = None if row.texts_equal else "red"
            table.add_row(*(column.show(row) for column in columns), style=style)
        console.print(table)


def markdown(figures: Figures, conditions: Conditions) -> str:
    machine = conditions.machine
    lines = [
        "# Benchmark",
        "",
        f"`{conditions.command}`, {conditions.date}",
        "",
        f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, "
        f"{machine.system}, Python {machine.python}, {machine.software}, "
        f"load {machine.load:g} before the start.",
        "",
        f"{conditions.extent}, {conditions.rounds} round{'s' * (conditions.rounds > 1)}; "
        f"{named_engines(conditions.engines)}; target in "
        f"{conditions.dtype}, row-invariant: {'yes' if conditions.row_invariant else 'no'}. "
        "What the columns mean is written in `benchmarks/README.md`.",
    ]
    if conditions.reservation is not None:
        lines += ["", f"**{conditions.reservation}**"]
    for title, columns, rows in _tables(figures):
        lines += ["", f"## {title}", ""]
        lines.append(_markdown_row([column.heading for column in columns]))
        lines.append(_markdown_row(["---"] * len(columns)))
        lines += [_markdown_row([column.show(row) for column in columns]) for row in rows]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def store(file: Path, figures: Figures, conditions: Conditions) -> Path:
    """Write the JSON `file` and the Markdown beside it; returns the latter's path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {**asdict(conditions), **asdict(figures)}
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside = file.with_suffix(".md")
    beside.write_text(markdown(figures, conditions), encoding="utf-8")
    return beside
