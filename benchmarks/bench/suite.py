"""`bench suite`: our systems and what a user would run instead, interleaved in one run."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tokenizers import Tokenizer

from bench.conditions import Conditions, Machine, portable, relative, this_machine
from bench.contest import Completion, Contender, ContenderError, compete, fastest_settings
from bench.figures import median_curve, summarise
from bench.foresight import read_along
from bench.in_process import InProcess
from bench.line_up import line_up_in_process, line_up_through_grpc, thread_counts
from bench.measurement import Task
from bench.peers import DEFAULT, ENVIRONMENTS, PeerError, line_up_peer
from bench.progress import shown
from bench.ratios import ratios
from bench.report import Report, print_report
from bench.terminal import (
    DIFFER,
    INTERRUPTED,
    PROMPTS,
    REFUSALS,
    RESULTS,
    make_console,
    name_differences,
    prompts_of,
    refuse,
    results_option,
    say_reservation,
    tasks_of,
    warm_up,
)
from card.cores import usable_cores
from card.serving.vocabulary import Vocabulary
from card.settings import load_settings
from card_client import CardError

TEMPERATURES = (0.0, 0.8)
PILOT_PROMPTS, PILOT_TOKENS = 4, 64
"""Every setting writes so many texts of such length; then each system has its fastest one."""
MEASURE_EVERY = 8
"""Visits between two measurements of cost curves."""

PeerName = Enum("PeerName", {name: name for name in ENVIRONMENTS}, type=str)  # type: ignore[misc]


def suite(
    prompts: Annotated[
        Path, typer.Option(help="JSONL: id, category, and prompt or messages in each line.")
    ] = PROMPTS,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use the first prompts only.", show_default="all"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens written for a prompt.")] = 128,
    minutes: Annotated[
        float,
        typer.Option(min=0.1, help="No prompt is begun later, counted from the first one."),
    ] = 60.0,
    json_file: Annotated[Path | None, results_option("DATE-suite.json")] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", help="Another settings file (YAML).", show_default="built in"),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            help="Sampling temperature. May be repeated.",
            show_default=", ".join(f"{t:g}" for t in TEMPERATURES),
            min=0,
        ),
    ] = None,
    peer: Annotated[
        list[PeerName] | None,
        typer.Option(help="A peer. May be repeated.", show_default=", ".join(DEFAULT)),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure peers too.")] = True,
    grpc: Annotated[bool, typer.Option(help="Measure CARD through a real server too.")] = True,
) -> None:
    """Measure our systems and their peers, interleaved in one run on the same weights."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine, console = this_machine(), make_console()
    skipped: list[str] = []
    try:
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, limit, max_tokens)
        if machine.is_busy:
            console.print(f"The machine is busy (load {machine.load:g}): figures will be too low.")
        with console.status("loading both models"):
            pair = InProcess(settings, vocabulary.tokenizer)
        tasks = tasks_of(chosen, list(dict.fromkeys(temperature or TEMPERATURES)), max_tokens)
        with ExitStack() as stack:
            contenders = line_up_in_process(stack, pair, thread_counts(usable_cores()))
            if grpc:
                contenders += line_up_through_grpc(stack, pair, settings_file)
            if peers:
                names = [name.value for name in peer] if peer else DEFAULT
                contenders += _peers(stack, console, pair, vocabulary.tokenizer, names, skipped)
            contest = _Contest(console, pair, skipped)
            pilot = contest.try_settings(contenders, tasks)
            chosen_settings = fastest_settings(pilot)
            completions = contest.run(chosen_settings, tasks, _clock(60 * minutes))
        ranks = read_along(pair.draft, completions)
    except REFUSALS as error:
        refuse(str(error))
    except CardError as error:
        refuse(f"the server answered: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    report = Report(
        conditions=_conditions(pair, machine, prompts, tasks, completions, contest.curves()),
        ratios=ratios(completions),
        rows=summarise(completions, ranks),
        tried=summarise(pilot, {}),
        skipped=skipped,
    )
    print_report(console, report)
    say_reservation(console, report.conditions)
    name = report.conditions.date.replace(":", "").split("+")[0]
    for path in report.store(json_file or RESULTS / f"{name}-suite.json"):
        console.print(str(path), highlight=False, soft_wrap=True)
    if not all(row.texts_equal in (True, None) for row in (*report.rows, *report.tried)):
        name_differences([*pilot, *completions])
        raise typer.Exit(DIFFER)


def _peers(
    stack: ExitStack,
    console: Console,
    pair: InProcess,
    tokenizer: Tokenizer,
    names: Sequence[str],
    skipped: list[str],
) -> list[Contender]:
    """The peers that can be run here; `skipped` gets a line for each that cannot."""
    contenders: list[Contender] = []
    for name in names:
        console.print(f"peer {name}: installing, converting, loading")
        try:
            peer = line_up_peer(ENVIRONMENTS[name], pair, tokenizer, usable_cores())
            contenders += stack.enter_context(peer)
        except PeerError as error:
            skipped.append(str(error))
            console.print(f"left out: {error}", highlight=False, soft_wrap=True)
    return contenders


class _Contest:
    """All turns, and the cost curves that are measured between them."""

    def __init__(self, console: Console, pair: InProcess, skipped: list[str]) -> None:
        self._console = console
        self._pair = pair
        self._skipped = skipped
        counts = sorted({*thread_counts(usable_cores()), pair.settings.target.threads})
        self._curves: dict[int, list[dict[int, float]]] = {count: [] for count in counts}
        self._visits = 0

    def try_settings(
        self, contenders: Sequence[Contender], tasks: Sequence[Task]
    ) -> list[Completion]:
        """What every setting of every system makes of a few short texts."""
        able = warm_up(self._console, contenders, tasks[0])
        prompts = list(dict.fromkeys(task.prompt for task in tasks))[:PILOT_PROMPTS]
        short = [
            replace(task, max_tokens=min(PILOT_TOKENS, task.max_tokens))
            for task in tasks
            if task.prompt in prompts
        ]
        line_up = {task.temperature: able for task in tasks}
        return self._take_turns("choosing settings", line_up, short, lambda: True)

    def run(
        self,
        line_up: Mapping[float, Sequence[Contender]],
        tasks: Sequence[Task],
        has_time: Callable[[], bool],
    ) -> list[Completion]:
        return self._take_turns("texts", line_up, tasks, has_time)

    def curves(self) -> dict[int, dict[int, float]]:
        """Milliseconds of a target pass by rows, by threads."""
        return {count: median_curve(found) for count, found in self._curves.items()}

    def _take_turns(
        self,
        what: str,
        line_up: Mapping[float, Sequence[Contender]],
        tasks: Sequence[Task],
        has_time: Callable[[], bool],
    ) -> list[Completion]:
        def left(contender: Contender, error: ContenderError) -> None:
            self._skipped.append(f"{contender.system}, {contender.gamma} tokens: {error}")
            self._console.print(f"leaves: {error}", highlight=False, soft_wrap=True)

        texts = sum(len(line_up[task.temperature]) for task in tasks)
        with shown(self._console, what, texts) as advance:
            return compete(
                line_up, tasks, self._measure, advance, on_failure=left, has_time=has_time
            )

    def _measure(self) -> None:
        if self._visits % MEASURE_EVERY == 0:
            for count, found in self._curves.items():
                found.append(self._pair.engines.row_costs_ms(count))
        self._visits += 1


def _conditions(
    pair: InProcess,
    machine: Machine,
    prompts: Path,
    tasks: Sequence[Task],
    completions: Sequence[Completion],
    curves: Mapping[int, Mapping[int, float]],
) -> Conditions:
    return Conditions(
        command=shlex.join(["./scripts/bench", *sys.argv[1:]]),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        settings=portable(pair.settings),
        prompts=relative(prompts),
        prompts_wanted=len({task.prompt for task in tasks}),
        prompt_numbers=list(dict.fromkeys(completion.task.seed for completion in completions)),
        max_tokens=tasks[0].max_tokens,
        engines=pair.engines.names,
        dtype=pair.dtype,
        row_invariant=pair.target.row_invariant,
        row_costs_ms=curves,
        draft_row_costs_ms=pair.draft.row_costs_ms,
        target_row_costs_ms=pair.target.row_costs_ms,
        target_alone_share=pair.target.alone_share,
    )


def _clock(seconds: float) -> Callable[[], bool]:
    """Whether there is time left, from now on."""
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() < ends
