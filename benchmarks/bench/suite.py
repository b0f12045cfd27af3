"""`bench suite`: our systems and what a user would run instead, interleaved in one run."""

from __future__ import annotations

import random
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tokenizers import Tokenizer

from bench.conditions import Conditions, portable, relative, this_machine
from bench.contest import Completion, Contender, ContenderError, Ours, compete
from bench.extremes import (
    SWEPT,
    WORST_TEMPERATURE,
    Variant,
    observe,
    sweep,
    worst_case,
)
from bench.figures import median_curve, summarise
from bench.foresight import read_along
from bench.in_process import InProcess
from bench.limits import Limits, LimitsMeter
from bench.line_up import (
    line_up_draft_alone,
    line_up_in_process,
    line_up_pearl,
    line_up_through_grpc,
    line_up_without_guesses,
    thread_counts,
)
from bench.measurement import Task
from bench.peers import ENVIRONMENTS, PeerError, line_up_peer
from bench.progress import shown
from bench.prompts import check_room, read_prompts
from bench.standings import Standing, best, compare, narrowed, stand
from bench.suite_report import SuiteReport, show_suite
from bench.terminal import (
    DIFFER,
    INTERRUPTED,
    PROMPTS,
    REFUSALS,
    RESULTS,
    make_console,
    name_differences,
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

GAMMAS = (1, 2, 3, 4, 6, 8, 12)
WIDTHS = (1, 4)
SERVED: tuple[Ours, ...] = ("autoregressive", "card")
TEMPERATURES = (0.0, 0.8)
CONTEST_SHARE, SWEEP_SHARE, WORST_SHARE = 0.85, 0.25, 0.1
"""Of the minutes; a sweep takes its share from the contest."""
MEASURE_EVERY = 4
"""Visits between two measurements of cost curves and bandwidth."""
SWEPT_TEXTS = 4
PILOT_PROMPTS, PILOT_SHARE = 2, 0.85
"""After so many prompts only settings go on that reach this share of their system's best one."""


def suite(
    prompts: Annotated[
        Path, typer.Option(help="JSONL with id, category and prompt in each line.")
    ] = PROMPTS,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use the first prompts only.", show_default="all"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens written for a prompt.")] = 256,
    minutes: Annotated[
        float,
        typer.Option(min=0.1, help="No text is begun later; loading and installing not counted."),
    ] = 15.0,
    json_file: Annotated[Path | None, results_option("DATE-suite.json")] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", help="Another settings file (YAML).", show_default="built in"),
    ] = None,
    gamma: Annotated[
        list[int] | None,
        typer.Option(
            help="Draft passes of draft-then-verify and PEARL. May be repeated.",
            show_default=", ".join(map(str, GAMMAS)),
            min=1,
            max=32,
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            help="Sampling temperature. May be repeated.",
            show_default=", ".join(f"{t:g}" for t in TEMPERATURES),
            min=0,
        ),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure transformers and OpenVINO too.")] = True,
    grpc: Annotated[bool, typer.Option(help="Measure through a real server too.")] = True,
    swept: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Vary CARD's width, depth, rows, growth too.")
    ] = True,
) -> None:
    """Measure our systems and their peers, interleaved in one run on the same weights."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine, console = this_machine(), make_console()
    skipped: list[str] = []
    try:
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = read_prompts(prompts, vocabulary.tokenizer, limit)
        check_room(chosen, max_tokens, settings.limits)
        if machine.is_busy:
            console.print(f"The machine is busy (load {machine.load:g}): figures will be too low.")
        with console.status("loading both models"):
            pair = InProcess(settings, vocabulary.tokenizer)
        temperatures = list(dict.fromkeys(temperature or TEMPERATURES))
        tasks = _shuffled(tasks_of(chosen, temperatures, max_tokens))
        counts, gammas = thread_counts(usable_cores()), list(dict.fromkeys(gamma or GAMMAS))
        with ExitStack() as stack:
            contenders = _line_up(stack, pair, gammas, counts)
            if grpc:
                contenders += line_up_through_grpc(stack, pair, settings_file, SERVED)
            if peers:
                contenders += _line_up_peers(stack, console, pair, vocabulary.tokenizer, skipped)
            contest = _Contest(console, pair, tasks, max_tokens)
            share = CONTEST_SHARE - SWEEP_SHARE * swept
            completions = contest.run(contenders, _clock(60 * minutes * share), skipped)
        standings = stand(completions)
        same = [task for task in tasks if task.temperature == temperatures[0]]
        turns = _best_of(standings, "draft_then_verify", temperatures[0])
        observed, timelines = observe(pair, same[:4], turns)
        worst = worst_case(
            settings,
            vocabulary.tokenizer,
            tasks_of(chosen, [WORST_TEMPERATURE], max_tokens),
            counts,
            _clock(60 * minutes * WORST_SHARE),
        )
        clock = _clock(60 * minutes * SWEEP_SHARE)
        variants = _sweep(console, pair, same[:SWEPT_TEXTS], standings, clock) if swept else []
        ours = [c for c in completions if c.contender.is_ours]
        figures = summarise(ours, read_along(pair.draft, ours), contest.curves())
    except REFUSALS as error:
        refuse(str(error))
    except CardError as error:
        refuse(f"the server answered: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    numbers = list(dict.fromkeys(completion.task.seed for completion in completions))
    conditions = Conditions(
        command=shlex.join(["./scripts/bench", *sys.argv[1:]]),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        settings=portable(pair.settings),
        prompts=relative(prompts),
        prompts_wanted=len(chosen),
        prompt_numbers=numbers,
        max_tokens=max_tokens,
        rounds=1,
        engines=pair.engines.names,
        dtype=pair.dtype,
        row_invariant=pair.target.row_invariant,
        row_costs_ms=contest.curves(),
        draft_row_costs_ms=pair.draft.row_costs_ms,
        target_row_costs_ms=pair.target.row_costs_ms,
        target_alone_share=pair.target.alone_share,
    )
    report = SuiteReport(
        conditions=conditions,
        standings=standings,
        comparisons=compare(completions),
        figures=figures,
        limits=contest.limits(),
        observed=observed,
        timelines=timelines,
        worst_case=worst,
        sweep=variants,
        skipped=skipped,
    )
    name = conditions.date.replace(":", "").split("+")[0]
    show_suite(console, report)
    say_reservation(console, conditions)
    for path in report.store(json_file or RESULTS / f"{name}-suite.json"):
        console.print(str(path), highlight=False, soft_wrap=True)
    if not (all(s.texts_equal in (True, None) for s in standings) and worst.texts_equal):
        name_differences(completions)
        raise typer.Exit(DIFFER)


def _line_up(
    stack: ExitStack, pair: InProcess, gammas: Sequence[int], counts: Sequence[int]
) -> list[Contender]:
    """Ours in process, and the draft model alone."""
    return [
        *line_up_in_process(stack, pair, counts, gammas, WIDTHS, counts),
        *line_up_pearl(stack, pair, gammas),
        *line_up_without_guesses(stack, pair),
        *line_up_draft_alone(stack, pair, counts),
    ]


def _line_up_peers(
    stack: ExitStack, console: Console, pair: InProcess, tokenizer: Tokenizer, skipped: list[str]
) -> list[Contender]:
    """The peers that can be run here; `skipped` gets a line for each that cannot."""
    contenders: list[Contender] = []
    for environment in ENVIRONMENTS:
        console.print(f"peer {environment.name}: installing, converting, loading")
        try:
            peer = line_up_peer(environment, pair, tokenizer, usable_cores())
            contenders += stack.enter_context(peer)
        except PeerError as error:
            skipped.append(str(error))
            console.print(f"left out: {error}", highlight=False, soft_wrap=True)
    return contenders


class _Contest:
    """All turns, and what is measured of the machine between them."""

    def __init__(
        self, console: Console, pair: InProcess, tasks: Sequence[Task], max_tokens: int
    ) -> None:
        self._console = console
        self._pair = pair
        self._tasks = tasks
        counts = sorted({*thread_counts(usable_cores()), pair.settings.target.threads})
        prompt = sum(len(task.prompt.tokens) for task in tasks) // len(tasks)
        self._meters = {
            count: LimitsMeter(pair.target_on(count), prompt + max_tokens // 2) for count in counts
        }
        self._curves: dict[int, list[dict[int, float]]] = {count: [] for count in counts}
        self._visits = 0

    def run(
        self, contenders: Sequence[Contender], has_time: Callable[[], bool], skipped: list[str]
    ) -> list[Completion]:
        able = warm_up(self._console, contenders, self._tasks[0])

        def left(contender: Contender, error: ContenderError) -> None:
            skipped.append(f"{contender.system}, {contender.gamma} tokens: {error}")
            self._console.print(f"leaves: {error}", highlight=False, soft_wrap=True)

        def take_turns(who: Sequence[Contender], tasks: Sequence[Task]) -> list[Completion]:
            with shown(self._console, "texts", len(who) * len(tasks)) as advance:
                return compete(
                    who, tasks, 1, self._measure, advance, on_failure=left, has_time=has_time
                )

        prompts = list(dict.fromkeys(task.prompt for task in self._tasks))[:PILOT_PROMPTS]
        pilot = [task for task in self._tasks if task.prompt in prompts]
        rest = self._tasks[len(pilot) :]
        completions = take_turns(able, pilot)
        if rest and has_time():
            completions += take_turns(narrowed(able, completions, PILOT_SHARE), rest)
        return completions

    def curves(self) -> dict[int, dict[int, float]]:
        """Milliseconds of a target pass by rows, by threads."""
        return {count: median_curve(found) for count, found in self._curves.items()}

    def limits(self) -> list[Limits]:
        return [meter.limits() for meter in self._meters.values()]

    def _measure(self, _: Task) -> None:
        if self._visits % MEASURE_EVERY == 0:
            for count, meter in self._meters.items():
                self._curves[count].append(self._pair.engines.row_costs_ms(count))
                meter.measure()
        self._visits += 1


def _shuffled(tasks: Sequence[Task]) -> list[Task]:
    """The prompts in an order that leaves no kind of them out when time runs short; always the
    same one. Temperatures of a prompt stay together."""
    seeds = list(dict.fromkeys(task.seed for task in tasks))
    random.Random(0).shuffle(seeds)
    place = {seed: at for at, seed in enumerate(seeds)}
    return sorted(tasks, key=lambda task: place[task.seed])


def _clock(seconds: float) -> Callable[[], bool]:
    """Whether there is time left, from now on."""
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() < ends


def _best_of(standings: Sequence[Standing], system: Ours, temperature: float) -> Standing:
    """The fastest setting of a system of ours in process."""
    (found,) = (
        s
        for s in best(standings)
        if (s.system, s.where, s.temperature) == (system, "in_process", temperature)
    )
    return found


def _sweep(
    console: Console,
    pair: InProcess,
    tasks: Sequence[Task],
    standings: Sequence[Standing],
    has_time: Callable[[], bool],
) -> list[Variant]:
    alone = _best_of(standings, "autoregressive", tasks[0].temperature)
    with shown(console, "sweep", sum(map(len, SWEPT.values()))) as advance:
        return sweep(pair, tasks, alone.threads, advance, has_time)
