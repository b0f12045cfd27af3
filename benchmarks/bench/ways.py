"""`bench ways`: what each way of `auto` costs and gives on this machine, and what `auto` chose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, geometric_mean, median
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import terminal
from bench.contest import tasks_of
from bench.figures import interval
from bench.in_process import InProcess, Loops
from bench.measurement import Task
from bench.prompts import check_room, read_prompts
from bench.runner import clock_of
from card.cache import STEPS_KEPT
from card.cache.header import Record
from card.cache.reports import Step, read_steps
from card.serving.requests.vocabulary import Vocabulary
from card.settings import load_settings
from card.speculation.pacing import PLAIN
from card_gateway.template import read_model

AUTO = "auto"
SYSTEMS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "alone": (PLAIN, {}),
    "ngrams": (AUTO, {"drafter": "ngram"}),
    "turns": ("draft_then_verify", {}),
    "beside": ("card", {}),
    AUTO: (AUTO, {}),
}
"""Decoding and settings that keep to one way for a whole text."""
MINUTES = 2.0
"""For all texts: loading both models takes most of the third minute."""


def ways(
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    limit: Annotated[int, typer.Option(min=1, help="Use the first prompts only.")] = 6,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.0,
    settings_file: terminal.SettingsFile = None,
) -> None:
    """Show what each way of `auto` costs and gives on this machine, within three minutes."""
    console = Console()
    with terminal.said_in_one_line(), ExitStack() as stack:
        settings = load_settings(settings_file)
        tokenizer = Vocabulary.load(settings.target.path).tokenizer
        template, _ = read_model(settings.target.path)
        read = read_prompts(prompts, tokenizer, limit, template.render)
        # So many tokens are at most so many steps, and every step is kept.
        tasks = tasks_of(read, [temperature], STEPS_KEPT - 1)
        check_room(read, STEPS_KEPT - 1, settings.limits)
        with console.status("loading both models"):
            pair = InProcess(settings, tokenizer)
        gamma = max(1, pair.rows - 1)
        loops = {
            name: stack.enter_context(pair.beside(**changes))
            for name, (_, changes) in SYSTEMS.items()
            if name not in ("alone", "turns")
        }
        loops["alone"] = loops["turns"] = loops["beside"]  # their pacings learn nothing
        speeds, costs = _measured(console, loops, tasks, pair, gamma)
        for line in lines(speeds, costs, loops[AUTO].pool.ways()):
            console.print(line, highlight=False, markup=False)


def _measured(
    console: Console,
    loops: Mapping[str, Loops],
    tasks: Sequence[Task],
    pair: InProcess,
    gamma: int,
) -> tuple[dict[str, list[float]], dict[str, dict[int, list[float]]]]:
    """Tokens per second of each text, and milliseconds of steps by rows, of each system."""
    speeds: defaultdict[str, list[float]] = defaultdict(list)
    costs: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in SYSTEMS}
    threads, has_time = pair.settings.target.threads, clock_of(MINUTES)
    for number, task in enumerate([tasks[0], *tasks]):  # the first text warms up
        if number > 1 and not has_time():
            break
        with console.status(f"text {number} of {len(tasks)}"):
            for name, (decoding, _) in SYSTEMS.items():
                done = loops[name].complete(
                    replace(task, trace=True), decoding, threads=threads, gamma=gamma
                )
                if number:
                    speeds[name].append(done.tokens_per_s)
                    steps, _ = read_steps(Record(loops[name].pool.slots, 0), 0)
                    for rows, ms in step_costs(steps):
                        costs[name][rows].append(ms)
    return dict(speeds), costs


def step_costs(steps: Sequence[Step]) -> Iterator[tuple[int, float]]:
    """Rows of each step but the first, which read the prompt, and milliseconds from the commit
    before to its own: what it waited for the draft's turn counts."""
    for before, step in pairwise(steps):
        yield 1 + len(step.candidates), (step.committed_ns - before.committed_ns) / 1e6


def lines(
    speeds: Mapping[str, Sequence[float]],
    costs: Mapping[str, Mapping[int, Sequence[float]]],
    chosen: Mapping[str, tuple[float, float]],
) -> Iterator[str]:
    """The report, as Markdown.

    chosen  of each way: tokens per second and share of time of `auto`'s passes
    """
    rows = sorted({number for cost in costs.values() for number in cost})
    yield "| way | tokens/s | / alone | share of auto's time |"
    yield "| --- | --- | --- | --- |"
    for name, found in speeds.items():
        quotients = [one / alone for one, alone in zip(found, speeds["alone"], strict=True)]
        low, high = interval(quotients)
        share = f"{chosen[name][1]:.2f}" if name in chosen else ""
        gain = f"{geometric_mean(quotients):.2f} ({low:.2f}–{high:.2f})"
        yield f"| {name} | {fmean(found):.1f} | {gain} | {share} |"
    yield ""
    yield "Median milliseconds of a step, with what it waited for, by rows:"
    yield ""
    yield f"| way | {' | '.join(map(str, rows))} |"
    yield "| --- |" + " --- |" * len(rows)
    for name, cost in costs.items():
        cells = (f"{median(cost[n]):.1f}" if cost.get(n) else "" for n in rows)
        yield f"| {name} | {' | '.join(cells)} |"
