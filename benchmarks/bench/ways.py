"""`bench ways`: what each way of `auto` costs and gives on this machine, and what `auto` chose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import terminal
from bench.contest import read_tasks
from bench.figures import ALL, Question, ratios, summarise
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.report import table
from bench.runner import Completion, Contender, Runner, clock_of
from card.cache import STEPS_KEPT
from card.cache.header import Record
from card.cache.reports import Step, read_steps
from card.settings import load_settings
from card.speculation.pacing import PLAIN

ALONE, AUTO = "alone", "auto"
SYSTEMS: dict[str, tuple[str, Mapping[str, Any]]] = {
    ALONE: (PLAIN, {}),
    "ngrams": (AUTO, {"drafter": "ngram"}),
    "turns": ("draft_then_verify", {}),
    "beside": ("card", {}),
    AUTO: (AUTO, {}),
}
"""Decoding and settings that keep to one way for a whole text."""
Costs = dict[str, dict[int, list[float]]]
"""Milliseconds of each step by way and rows."""
MINUTES = 2.0
"""Minutes for all texts. Loading both models takes most of a third minute."""


def ways(
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    limit: Annotated[int, typer.Option(min=1, help="Use the first prompts only.")] = 6,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.0,
    settings_file: terminal.SettingsFile = None,
) -> None:
    """Show what each way of `auto` costs and gives on this machine, within three minutes."""
    console = Console()
    # So many tokens are at most so many steps, and every step is kept.
    extent = terminal.Extent(
        prompts, STEPS_KEPT - 1, None, settings_file, limit, MINUTES, [temperature]
    )
    with terminal.said_in_one_line(), ExitStack() as stack:
        settings = load_settings(settings_file)
        tokenizer, read = read_tasks(settings, extent)
        tasks = [replace(task, trace=True) for task in read]
        with console.status("loading both models"):
            pair = InProcess(settings, tokenizer)
        loops = {
            name: stack.enter_context(pair.beside(**changes))
            for name, (_, changes) in SYSTEMS.items()
            if name not in (ALONE, "turns")
        }
        loops[ALONE] = loops["turns"] = loops["beside"]  # their pacings learn nothing
        costs: Costs = {name: defaultdict(list) for name in SYSTEMS}
        line_up = {temperature: [_contender(name, pair, loops[name], costs) for name in SYSTEMS]}
        runner = Runner(console, [])
        runner.run(line_up, tasks[:1])  # warms up
        for cost in costs.values():
            cost.clear()
        done = runner.run(line_up, tasks, clock_of(MINUTES))
        for line in lines(done, costs, loops[AUTO].pool.ways()):
            console.print(line, highlight=False, markup=False)


def _contender(name: str, pair: InProcess, loops: Loops, costs: Costs) -> Contender:
    """One way, which adds milliseconds of its steps by rows to `costs`."""
    decoding, _ = SYSTEMS[name]
    threads, gamma = pair.settings.target.threads, max(1, pair.rows - 1)

    def complete(task: Task) -> Measurement:
        done = loops.complete(task, decoding, threads=threads, gamma=gamma)
        steps, _ = read_steps(Record(loops.pool.slots, 0), 0)
        for rows, ms in step_costs(steps):
            costs[name][rows].append(ms)
        return done

    return Contender(name, "in_process", pair.rows, complete=complete)


def step_costs(steps: Sequence[Step]) -> Iterator[tuple[int, float]]:
    """Rows of each step but the first, which read the prompt, and milliseconds from the commit
    before to its own: what it waited for the draft's turn counts."""
    for before, step in pairwise(steps):
        yield 1 + len(step.candidates), (step.committed_ns - before.committed_ns) / 1e6


def lines(
    done: Sequence[Completion], costs: Costs, chosen: Mapping[str, tuple[float, float]]
) -> Iterator[str]:
    """The report in Markdown.

    chosen  of each way: tokens per second and share of time of `auto`'s passes
    """
    gains = ratios(done, [Question(name, name, (ALONE,)) for name in SYSTEMS])
    gain_of = {gain.name: gain for gain in gains if gain.kind == ALL}
    speeds = [
        (
            row["system"],
            f"{row['tokens_per_s']:.1f}",
            gain_of[row["system"]],
            f"{chosen[row['system']][1]:.2f}" if row["system"] in chosen else "",
        )
        for row in summarise(done)
    ]
    yield from table(("way", "tokens/s", "/ alone", "share of auto's time"), speeds)
    yield from ("", "Median milliseconds of a step, with what it waited for, by rows:", "")
    rows = sorted({number for cost in costs.values() for number in cost})
    medians = [
        (name, *(f"{median(cost[n]):.1f}" if n in cost else "" for n in rows))
        for name, cost in costs.items()
    ]
    yield from table(("way", *rows), medians)
