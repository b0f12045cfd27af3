"""`bench family`: systems of the literature side by side, interleaved in one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from bench.cells import WHO, Cells, Columns, known, shown, table
from bench.conclusion import conclude
from bench.conditions import Conditions, Machine, conditions_of, this_machine
from bench.contest import Contender, fastest_settings
from bench.drafts import with_small_draft
from bench.figures import Row, summarise
from bench.in_process import InProcess
from bench.line_up import line_up_devices, line_up_family, quickest, thread_counts
from bench.options import (
    TEMPERATURES,
    Limit,
    MaxTokens,
    Minutes,
    PromptsFile,
    SettingsFile,
    Temperatures,
)
from bench.ratios import ALL, Question, Ratio, ratios
from bench.report import TRIED, Report
from bench.rounds import Rounds, clock_of
from bench.systems import SYSTEMS, System
from bench.terminal import (
    PROMPTS,
    make_console,
    prompts_of,
    results_option,
    said_in_one_line,
    tasks_of,
)
from bench.through_grpc import ServerError
from card.cores import usable_cores
from card.serving.requests.vocabulary import Vocabulary
from card.settings import load_settings
from card.speculation.pacing import PLAIN

SystemName = Enum("SystemName", {name: name for name in SYSTEMS}, type=str)  # type: ignore[misc]


def family(
    prompts: PromptsFile = PROMPTS,
    limit: Limit = None,
    max_tokens: MaxTokens = 128,
    minutes: Minutes = 60.0,
    json_file: Annotated[Path | None, results_option("DATE-family.json")] = None,
    settings_file: SettingsFile = None,
    temperature: Temperatures = None,
    system: Annotated[
        list[SystemName] | None,
        typer.Option(
            help="A system, beside the target alone. May be repeated.", show_default="all"
        ),
    ] = None,
) -> None:
    """Measure the systems of the literature, each built from our parts, on the same weights."""
    machine, console = this_machine(), make_console()
    skipped: list[str] = []
    wanted = {name.value for name in system or SystemName} | {PLAIN}
    with said_in_one_line():
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, limit, max_tokens)
        tasks = tasks_of(chosen, list(dict.fromkeys(temperature or TEMPERATURES)), max_tokens)
        with ExitStack() as stack:
            settings = stack.enter_context(with_small_draft(settings))
            with console.status("loading both models"):
                pair = InProcess(settings, vocabulary.tokenizer)
            systems = {name: found for name, found in SYSTEMS.items() if name in wanted}
            threads = thread_counts(usable_cores())
            with console.status("loading what the systems run on"):
                best = quickest(pair, threads)
                contenders = line_up_family(stack, pair, threads, systems, [best])
                contenders += _devices(stack, pair, settings_file, systems, skipped)
            turns = Rounds(console, pair, skipped)
            pilot = turns.try_settings(contenders, tasks, clock_of(minutes / 2))
            fastest = fastest_settings(pilot)
            completions = turns.run(fastest, tasks, clock_of(minutes))
    questions = [
        Question(name, f"{name}@grpc" if system.on_a_device else name, (PLAIN,))
        for name, system in systems.items()
    ]
    report = FamilyReport(
        conditions=conditions_of(pair, machine, prompts, tasks, completions, turns.curves()),
        ratios=ratios(completions, questions),
        rows=summarise(completions, {}),
        tried=summarise(pilot, {}),
        skipped=skipped,
    )
    conclude(console, report, "family", json_file, [*pilot, *completions])


def tables(
    result: Annotated[Path, typer.Argument(help="JSON of `family`.", exists=True, dir_okay=False)],
) -> None:
    """Print the tables of a result of `family` again, as Markdown."""
    print(FamilyReport.stored(json.loads(result.read_text("utf-8"))).markdown(), end="")


def _devices(
    stack: ExitStack,
    pair: InProcess,
    settings_file: Path | None,
    systems: Mapping[str, System],
    skipped: list[str],
) -> list[Contender]:
    """Those that draft on a device; `skipped` gets a line if no server can be started for them."""
    try:
        return line_up_devices(stack, pair, settings_file, systems)
    except ServerError as error:
        skipped.append(f"sled: {error}")
        return []


@dataclass(frozen=True)
class FamilyReport(Report):
    """One table: what each system gives, and what its paper claims."""

    title: ClassVar[str] = "The family"

    def content(self) -> dict[str, Any]:
        content = super().content()
        for row in content["rows"]:
            row |= {"paper": SYSTEMS[row["system"]].paper, "claim": SYSTEMS[row["system"]].claim}
        return content

    @classmethod
    def stored(cls, content: Mapping[str, Any]) -> FamilyReport:
        """The report whose JSON this is."""
        run = {name: content[name] for name in _names_of(Conditions)}
        rows, tried = (
            [Row(**{name: row[name] for name in _names_of(Row)}) for row in content[part]]
            for part in ("rows", "tried")
        )
        return cls(
            Conditions(**run | {"machine": Machine(**run["machine"])}),
            [Ratio(**ratio) for ratio in content["ratios"]],
            rows,
            tried,
            content["skipped"],
        )

    def tables(self) -> list[Cells]:
        rows = table("The family", _FAMILY, self.rows)
        kinds = self._kinds()
        headings = [f"speed-up, {kind}" for kind in kinds]
        claims = "claim of its paper", "paper"
        found = [
            [*cells, *shown(self._speed_ups(row), kinds), *_said(row)]
            for cells, row in zip(rows.rows, self.rows, strict=True)
        ]
        family = Cells(rows.title, [*rows.headings, *headings, *claims], found)
        tried = table("Settings tried", (*_WHO, *TRIED[len(WHO) :]), self.tried)
        return [family, self.worth(), self.winners(), tried]

    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(ratio.kind for ratio in self.ratios if "/" not in ratio.kind))

    def worth(self) -> Cells:
        """Speed-ups over the target alone, the fastest lossless one of each kind in bold, and what
        became of the draft's work where nothing is drawn."""
        kinds = [kind for kind in self._kinds() if kind != ALL] or [ALL]
        temperatures = list(dict.fromkeys(row.temperature for row in self.rows))
        columns = [(kind, temperature) for temperature in temperatures for kind in kinds]
        found = {(ratio.name, ratio.kind, ratio.temperature): ratio.value for ratio in self.ratios}
        best = {
            column: max(
                (found.get((row.system, *column), 0.0) for row in self.rows if row.lossless),
                default=0.0,
            )
            for column in columns
        }
        rows = []
        for row in (row for row in self.rows if row.temperature == temperatures[0]):
            ours = [(found.get((row.system, *column)), best[column]) for column in columns]
            rows.append(
                [
                    row.system,
                    *(f"**{v:.2f}**" if v == most else known(v, ".2f") for v, most in ours),
                    f"{row.tokens_per_step:.2f}",
                    *(show(row) for _, show in _DRAFT),
                ]
            )
        first = f"t {temperatures[0]:g}" if temperatures else ""
        headings = [f"{kind}, t {temperature:g}" for kind, temperature in columns]
        headings += [f"{what}, {first}" for what in ("tokens/step", *(name for name, _ in _DRAFT))]
        return Cells("What each is worth", ["system", *headings], rows)

    def winners(self) -> Cells:
        """By kind of text, which lossless systems are the fastest, and CARD: each with its speed-up
        over the target alone."""
        lossless = {(row.system, row.temperature) for row in self.rows if row.lossless}
        temperatures = list(dict.fromkeys(ratio.temperature for ratio in self.ratios))
        rows = []
        for kind in dict.fromkeys(ratio.kind for ratio in self.ratios):
            here = [ratio for ratio in self.ratios if ratio.kind == kind]
            cells = [kind, str(max(ratio.texts for ratio in here))]
            for temperature in temperatures:
                able = [
                    ratio
                    for ratio in here
                    if ratio.temperature == temperature and (ratio.name, temperature) in lossless
                ]
                best = sorted(able, key=lambda ratio: -ratio.value)
                card = next((ratio for ratio in able if ratio.name == "card"), None)
                cells += [_named(ratio) for ratio in (*best[:2], None, None)][:2]
                cells.append("" if card is None else f"{card.value:.2f}")
            rows.append(cells)
        headings = ["kind of text", "texts"]
        for temperature in temperatures:
            headings += [f"{what}, t {temperature:g}" for what in ("fastest", "next", "CARD")]
        return Cells("Fastest by kind of text", headings, rows)

    def _speed_ups(self, row: Row) -> dict[str, Ratio]:
        """Over the target alone, by kind of prompts."""
        return {
            ratio.kind: ratio
            for ratio in self.ratios
            if (ratio.name, ratio.temperature) == (row.system, row.temperature)
        }


def _named(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio.name} {ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def _said(row: Row) -> tuple[str, str]:
    system = SYSTEMS[row.system]
    return system.claim, system.paper


def _names_of(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


_WHO: Columns[Row] = (("system", lambda row: row.system), *WHO[1:])
"""By the names of `SYSTEMS`."""
_DRAFT: Columns[Row] = (
    ("draft ms/token", lambda row: known(row.draft_ms_per_token, ".2f")),
    ("rolled back", lambda row: known(row.rollback_share, ".0%")),
    ("rows saved/pass", lambda row: known(row.saved_rows_per_pass, ".2f")),
)
_FAMILY: Columns[Row] = (
    *_WHO,
    ("tokens/s", lambda row: f"{row.tokens_per_s:.0f}"),
    ("lossless", lambda row: "yes" if row.lossless else "no"),
    ("tokens/step", lambda row: f"{row.tokens_per_step:.2f}"),
    *_DRAFT,
    ("not the target's", lambda row: known(row.foreign_share, ".1%")),
)
