"""The suite's tables for the terminal, Markdown and JSON, and its pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.conditions import Conditions, named_engines
from bench.extremes import Observed, Timeline, Variant, WorstCase
from bench.figures import Figures, Row
from bench.limits import Limits
from bench.names import name_of, place_of, setting_of
from bench.plots import plot_committed, plot_speeds, plot_sweep, plot_timeline
from bench.report import PAIR, pair_rows
from bench.standings import Comparison, Standing, best

Cells = tuple[str, list[str], list[list[str]]]
"""Title, headings and cells of a table."""


@dataclass(frozen=True)
class Headline:
    """A figure of ours at one temperature."""

    temperature: float
    figure: str
    value: float


@dataclass(frozen=True)
class SuiteReport:
    """Everything that `bench suite` found. `standings`: every setting of every system."""

    conditions: Conditions
    standings: list[Standing]
    comparisons: list[Comparison]
    figures: Figures
    limits: list[Limits]
    observed: Observed
    timelines: list[Timeline]
    worst_case: WorstCase
    sweep: list[Variant]
    skipped: list[str]

    @property
    def best(self) -> list[Standing]:
        return best(self.standings)

    def headlines(self) -> list[Headline]:
        """The figures that CARD is judged by, ratios of medians of this run."""
        found: list[Headline] = []
        for temperature in dict.fromkeys(s.temperature for s in self.best):
            found += [
                Headline(temperature, name, value) for name, value in self._figures(temperature)
            ]
        worst = self.worst_case
        name = "worst case: CARD with an unrelated draft / autoregressive"
        learning = f"{name}, the first text, which finds that out"
        found.append(Headline(worst.temperature, name, worst.ratio_to_autoregressive))
        found.append(Headline(worst.temperature, learning, worst.first_ratio_to_autoregressive))
        return found

    def _figures(self, temperature: float) -> list[tuple[str, float]]:
        speeds = {
            (s.system, s.where): s.tokens_per_s for s in self.best if s.temperature == temperature
        }
        found: list[tuple[str, float]] = []

        def ratio(name: str, of: tuple[str, str], to: tuple[str, str]) -> None:
            if of in speeds and to in speeds:
                found.append((name, speeds[of] / speeds[to]))

        card, alone = ("card", "in_process"), ("autoregressive", "in_process")
        row = self._row("card", temperature)
        if row is not None and row.share_of_ideal is not None:
            found.append((f"CARD / its ideal of {row.rows} rows", row.share_of_ideal))
        if row is not None and row.decoding_share_of_ideal is not None:
            found.append(("the same behind the first token", row.decoding_share_of_ideal))
        for comparison in self.comparisons:
            if comparison.temperature == temperature and comparison.to != "draft_alone":
                name = f"CARD / {name_of(comparison.to)}"
                found += [(name, comparison.ratio), (f"{name}, by text", comparison.by_text)]
        for peer in ("transformers", "openvino"):
            speed = [speeds[who] for who in speeds if who[0].startswith(peer)]
            if speed:
                found.append((f"CARD / best of {name_of(peer)}", speeds[card] / max(speed)))
        ratio("share of the draft model's own speed", card, ("draft_alone", "in_process"))
        ratio("our autoregressive / OpenVINO GenAI", alone, ("openvino", "peer"))
        ratio("CARD through gRPC / in process", ("card", "grpc"), card)
        ratio("autoregressive through gRPC / in process", ("autoregressive", "grpc"), alone)
        step = self._row("autoregressive", temperature)
        if step is not None and step.ms_per_step:
            (limits,) = (x for x in self.limits if x.threads == step.threads)
            found.append(("its own linears back to back / autoregressive step",
                          limits.linears_ms / step.ms_per_step))  # fmt: skip
            found.append(("bandwidth floor / autoregressive step",
                          limits.floor_ms / step.ms_per_step))  # fmt: skip
        return found

    def _row(self, system: str, temperature: float) -> Row | None:
        rows = (
            row
            for row in self.figures.rows
            if (row.system, row.where, row.temperature) == (system, "in_process", temperature)
        )
        return next(rows, None)

    def content(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            **asdict(self.conditions),
            "headlines": [asdict(headline) for headline in self.headlines()],
            "best": [asdict(standing) for standing in self.best],
            "standings": [asdict(standing) for standing in self.standings],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            **asdict(self.figures),
            "limits": [asdict(limits) | {"floor_ms": limits.floor_ms} for limits in self.limits],
            "observed": asdict(self.observed),
            "timelines": [asdict(timeline) for timeline in self.timelines],
            "worst_case": asdict(self.worst_case),
            "sweep": [asdict(variant) for variant in self.sweep],
            "skipped": self.skipped,
        }

    def store(self, file: Path) -> list[Path]:
        """Write the JSON, Markdown and pictures beside it; returns their paths."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.content(), indent=2) + "\n", encoding="utf-8")
        beside = file.with_suffix(".md")
        beside.write_text(self.markdown(), encoding="utf-8")

        def picture(what: str) -> Path:
            return file.with_name(f"{file.stem}-{what}.png")

        paths = [
            file,
            beside,
            plot_speeds(picture("speeds"), self.best),
            plot_timeline(picture("timeline"), self.timelines),
            plot_committed(picture("accepted"), self.observed),
        ]
        if self.sweep:
            paths.append(plot_sweep(picture("sweep"), self.sweep))
        return paths

    def markdown(self) -> str:
        run, machine = self.conditions, self.conditions.machine
        lines = [
            "# Benchmark suite",
            "",
            f"`{run.command}`, {run.date}",
            "",
            f"{machine.processor}, {machine.cores} cores for every system, {machine.memory_gib:g} "
            f"GiB, {machine.system}, Python {machine.python}, {machine.software}, load "
            f"{machine.load:g} before the start; {named_engines(run.engines)} in {run.dtype}; "
            f"{run.extent}. What the columns mean is written in `benchmarks/README.md`.",
        ]
        if run.reservation is not None:
            lines += ["", f"**{run.reservation}**"]
        for title, headings, rows in self.tables():
            lines += ["", f"## {title}", "", f"| {' | '.join(headings)} |"]
            lines.append(f"|{' --- |' * len(headings)}")
            lines += [f"| {' | '.join(row)} |" for row in rows]
        if self.skipped:
            lines += ["", "Left out:", "", *(f"- {line}" for line in self.skipped)]
        return "\n".join(lines) + "\n"

    def tables(self) -> list[Cells]:
        ours = [row for row in self.figures.rows if row.where == "in_process"]
        found = [
            _table("The pair", _PAIR, pair_rows(self.figures)),
            _table("Systems", _SPEED, self.best),
            _table("Figures", _HEADLINE, self.headlines()),
            _table("Speculation", _SPECULATION, [r for r in ours if r.system != "autoregressive"]),
            _table("One target step", _STEP, ours),
            self._passes(),
            _table("The machine", _LIMITS, self.limits),
            _table("Watched", _OBSERVED, [self.observed]),
            _table("Where the time of both loops goes", _ACCOUNT, self.observed.accounts),
        ]
        if self.sweep:
            found.append(_table("CARD with one setting changed", _SWEEP, self.sweep))
        return [*found, _table("All settings", _SPEED, self.standings)]

    def _passes(self) -> Cells:
        """Milliseconds of a pass that nothing else slows, by its rows."""
        curves = {
            f"target, {count} thread{'s' * (count > 1)}": curve
            for count, curve in self.conditions.row_costs_ms.items()
        }
        curves["draft"] = self.conditions.draft_row_costs_ms
        rows = sorted({rows for curve in curves.values() for rows in curve})
        return (
            "Milliseconds of a pass alone, by rows",
            ["model", *map(str, rows)],
            [
                [model, *(_known(curve.get(count), ".2f") for count in rows)]
                for model, curve in curves.items()
            ],
        )


def show_suite(console: Console, report: SuiteReport) -> None:
    for title, headings, rows in report.tables()[:-1]:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


Columns = Sequence[tuple[str, Callable[[Any], str]]]


def _table(title: str, columns: Columns, rows: Sequence[Any]) -> Cells:
    headings = [heading for heading, _ in columns]
    return title, headings, [[show(row) for _, show in columns] for row in rows]


def _known(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _equal(value: bool | None) -> str:
    return {True: "equal", False: "DIFFER", None: ""}[value]


_PAIR: Columns = tuple((column.heading, column.show) for column in PAIR)
_SPEED: Columns = (
    ("system", lambda s: name_of(s.system)),
    ("setting", setting_of),
    ("where", lambda s: place_of(s.where)),
    ("t", lambda s: f"{s.temperature:g}"),
    ("texts", lambda s: str(s.texts)),
    ("tokens/s", lambda s: f"{s.tokens_per_s:.0f}"),
    ("quartiles", lambda s: "{:.0f}–{:.0f}".format(*s.tokens_per_s_quartiles)),
    ("ratio", lambda s: f"{s.ratio_to_autoregressive:.2f}"),
    ("first token ms", lambda s: f"{s.time_to_first_token_ms:.0f}"),
    ("same text", lambda s: _equal(s.texts_equal)),
    ("common prefix", lambda s: _known(s.common_prefix, ".0%")),
)
_HEADLINE: Columns = (
    ("figure", lambda h: h.figure),
    ("t", lambda h: f"{h.temperature:g}"),
    ("value", lambda h: f"{h.value:.2f}"),
)
_SPECULATION: Columns = (
    ("system", lambda row: name_of(row.system)),
    ("t", lambda row: f"{row.temperature:g}"),
    ("agreement", lambda row: _known(row.agreement, ".3f")),
    ("ideal tokens/step", lambda row: _known(row.ideal_tokens_per_step, ".2f")),
    ("tokens/step", lambda row: f"{row.tokens_per_step:.2f}"),
    ("accepted/step", lambda row: f"{row.mean_accepted:.2f}"),
    ("hit rate", lambda row: _known(row.hit_rate, ".1%")),
    ("target waits", lambda row: _known(row.target_wait_share, ".1%")),
    ("draft idle", lambda row: _known(row.draft_idle_share, ".1%")),
)
_STEP: Columns = (
    ("system", lambda row: name_of(row.system)),
    ("t", lambda row: f"{row.temperature:g}"),
    ("ms/step", lambda row: _known(row.ms_per_step, ".2f")),
    ("query", lambda row: _known(row.query_ms, ".2f")),
    ("forward", lambda row: _known(row.forward_ms, ".2f")),
    ("walk", lambda row: _known(row.walk_ms, ".2f")),
)
_LIMITS: Columns = (
    ("threads", lambda x: str(x.threads)),
    ("copy GB/s", lambda x: f"{x.copy_gb_s:.1f}"),
    ("read GB/s", lambda x: f"{x.read_gb_s:.1f}"),
    ("weights MB", lambda x: f"{x.weight_bytes / 1e6:.1f}"),
    ("KV MB", lambda x: f"{x.kv_bytes / 1e6:.2f}"),
    ("floor ms", lambda x: f"{x.floor_ms:.2f}"),
    ("linears ms", lambda x: f"{x.linears_ms:.2f}"),
)
_OBSERVED: Columns = (
    ("steps", lambda x: str(sum(x.committed.values()))),
    ("hit rate after corrections", lambda x: _known(x.hit_rate_after_corrections, ".1%")),
    (
        "accepted: share of steps",
        lambda x: ", ".join(
            f"{committed - 1}: {count / sum(x.committed.values()):.0%}"
            for committed, count in x.committed.items()
        ),
    ),
)
_ACCOUNT: Columns = (
    ("model", lambda x: x.model),
    ("passes", lambda x: str(x.passes)),
    ("ms/pass", lambda x: f"{sum(x.pass_ms.values()):.2f}"),
    ("of it", lambda x: ", ".join(f"{phase} {ms:.2f}" for phase, ms in x.pass_ms.items())),
    (
        "share of the time",
        lambda x: ", ".join(f"{phase} {share:.1%}" for phase, share in x.phases.items()),
    ),
    ("known", lambda x: f"{x.known:.1%}"),
)
_SWEEP: Columns = (
    ("setting", lambda v: v.setting),
    ("value", lambda v: str(v.value)),
    ("tokens/s", lambda v: f"{v.tokens_per_s:.0f}"),
    ("ratio", lambda v: f"{v.ratio_to_autoregressive:.2f}"),
    ("tokens/step", lambda v: f"{v.tokens_per_step:.2f}"),
)
