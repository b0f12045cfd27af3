"""The command line: set everything up, let them compete, print and store the figures."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.conditions import Conditions, portable, relative, this_machine
from bench.contest import Completion, Contender, compete
from bench.figures import Figures, median_curve, summarise
from bench.foresight import read_along
from bench.in_process import InProcess
from bench.line_up import line_up_in_process, line_up_through_grpc, thread_counts
from bench.measurement import Task
from bench.progress import shown
from bench.prompts import check_room, read_prompts
from bench.report import print_tables, store
from bench.streams import streams
from bench.suite import suite
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
WIDTHS = (1,)
TEMPERATURES = (0.0, 0.8)

Costs = dict[int, list[dict[int, float]]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(suite)
app.command()(streams)


def _swept(text: str, shown: str, least: float, most: float | None = None) -> Any:
    return typer.Option(help=f"{text} May be repeated.", show_default=shown, min=least, max=most)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    prompts: Annotated[
        Path, typer.Option(help="JSONL with id, category and prompt in each line.")
    ] = PROMPTS,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use the first prompts only.", show_default="all"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens written for a prompt.")] = 256,
    json_file: Annotated[Path | None, results_option("DATE.json")] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", help="Another settings file (YAML).", show_default="built in"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often every text is written.")] = 1,
    gamma: Annotated[
        list[int] | None,
        _swept("Draft passes of draft-then-verify.", ", ".join(map(str, GAMMAS)), 1, 32),
    ] = None,
    width: Annotated[
        list[int] | None,
        _swept("Nodes per draft pass of draft-then-verify.", ", ".join(map(str, WIDTHS)), 1, 32),
    ] = None,
    threads: Annotated[
        list[int] | None,
        _swept("Threads of autoregressive decoding.", "1 to all cores", 1, 256),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        _swept("Sampling temperature.", ", ".join(f"{t:g}" for t in TEMPERATURES), 0),
    ] = None,
    grpc: Annotated[bool, typer.Option(help="Measure through a real server too.")] = True,
) -> None:
    """Measure autoregressive decoding, draft-then-verify and CARD side by side."""
    if context.invoked_subcommand is not None:
        _refuse_options_before(context, context.invoked_subcommand)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = this_machine()
    console = make_console()
    try:
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = read_prompts(prompts, vocabulary.tokenizer, limit)
        check_room(chosen, max_tokens, settings.limits)
        if machine.is_busy:
            console.print(f"The machine is busy (load {machine.load:g}): figures will be too low.")
        with console.status("loading both models"):
            pair = InProcess(settings, vocabulary.tokenizer)
        tasks = tasks_of(chosen, list(dict.fromkeys(temperature or TEMPERATURES)), max_tokens)
        counts = list(dict.fromkeys(threads or thread_counts(usable_cores())))
        with ExitStack() as stack:
            with console.status("starting the draft" + " and the server" * grpc):
                contenders = line_up_in_process(
                    stack, pair, counts, gamma or GAMMAS, width or WIDTHS
                )
                if grpc:
                    contenders += line_up_through_grpc(stack, pair, settings_file)
            costs: Costs = {count: [] for count in {*counts, settings.target.threads}}
            completions = _compete(console, pair, contenders, tasks, repeats, costs)
        curves = {count: median_curve(found) for count, found in costs.items()}
        figures = summarise(completions, read_along(pair.draft, completions), curves)
    except REFUSALS as error:
        refuse(str(error))
    except CardError as error:
        refuse(f"the server answered: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    conditions = Conditions(
        command=shlex.join(["./scripts/bench", *sys.argv[1:]]),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        settings=portable(pair.settings),
        prompts=relative(prompts),
        prompts_wanted=len(chosen),
        prompt_numbers=list(range(len(chosen))),
        max_tokens=max_tokens,
        rounds=repeats,
        engines=pair.engines.names,
        dtype=pair.dtype,
        row_invariant=pair.target.row_invariant,
        row_costs_ms=curves,
        draft_row_costs_ms=pair.draft.row_costs_ms,
        target_row_costs_ms=pair.target.row_costs_ms,
        target_alone_share=pair.target.alone_share,
    )
    _show_and_store(console, figures, conditions, json_file)
    if not all(row.texts_equal for row in figures.swept):
        name_differences(completions)
        raise typer.Exit(DIFFER)


def _refuse_options_before(context: typer.Context, subcommand: str) -> None:
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            refuse(f"the options of {subcommand} stand behind its name; {name} stands before it")


def _compete(
    console: Console,
    pair: InProcess,
    contenders: Sequence[Contender],
    tasks: Sequence[Task],
    rounds: int,
    costs: Costs,
) -> list[Completion]:
    """The contest, its progress shown; `costs` gathers cost curves between the visits."""

    def measure_passes(task: Task) -> None:
        if task.temperature == tasks[0].temperature:
            for threads, curves in costs.items():
                curves.append(pair.engines.row_costs_ms(threads))

    warm_up(console, contenders, tasks[0])
    with shown(console, "texts", len(contenders) * len(tasks) * rounds) as advance:
        return compete(contenders, tasks, rounds, measure_passes, advance)


def _show_and_store(
    console: Console, figures: Figures, conditions: Conditions, json_file: Path | None
) -> None:
    print_tables(console, figures)
    say_reservation(console, conditions)
    name = conditions.date.replace(":", "").split("+")[0]
    file = json_file or RESULTS / f"{name}.json"
    beside = store(file, figures, conditions)
    console.print(f"{file}\n{beside}", highlight=False, soft_wrap=True)
