"""`bench suite`: our systems and what a user would run instead, interleaved in one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tokenizers import Tokenizer

from bench.conclusion import conclude
from bench.conditions import conditions_of, this_machine
from bench.contest import Contender, fastest_settings
from bench.figures import summarise
from bench.foresight import read_along
from bench.in_process import InProcess
from bench.line_up import line_up_in_process, line_up_through_grpc, thread_counts
from bench.options import (
    TEMPERATURES,
    Limit,
    MaxTokens,
    Minutes,
    PromptsFile,
    SettingsFile,
    Temperatures,
)
from bench.peers import ENVIRONMENTS, PeerError, line_up_peer
from bench.ratios import ratios
from bench.report import Report
from bench.rounds import Rounds, clock_of
from bench.terminal import (
    PROMPTS,
    make_console,
    prompts_of,
    results_option,
    said_in_one_line,
    tasks_of,
    warn_if_busy,
)
from card.cores import usable_cores
from card.serving.requests.vocabulary import Vocabulary
from card.settings import load_settings

PeerName = Enum("PeerName", {name: name for name in ENVIRONMENTS}, type=str)  # type: ignore[misc]


def suite(
    prompts: PromptsFile = PROMPTS,
    limit: Limit = None,
    max_tokens: MaxTokens = 128,
    minutes: Minutes = 60.0,
    json_file: Annotated[Path | None, results_option("DATE-suite.json")] = None,
    settings_file: SettingsFile = None,
    temperature: Temperatures = None,
    peer: Annotated[
        list[PeerName] | None,
        typer.Option(help="A peer. May be repeated.", show_default=", ".join(ENVIRONMENTS)),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure peers too.")] = True,
    grpc: Annotated[bool, typer.Option(help="Measure CARD through a real server too.")] = True,
) -> None:
    """Measure our systems and their peers, interleaved in one run on the same weights."""
    machine, console = this_machine(), make_console()
    skipped: list[str] = []
    with said_in_one_line():
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, limit, max_tokens)
        warn_if_busy(console, machine)
        with console.status("loading both models"):
            pair = InProcess(settings, vocabulary.tokenizer)
        tasks = tasks_of(chosen, list(dict.fromkeys(temperature or TEMPERATURES)), max_tokens)
        with ExitStack() as stack:
            contenders = line_up_in_process(stack, pair, thread_counts(usable_cores()))
            if grpc:
                contenders += line_up_through_grpc(stack, pair, settings_file)
            if peers:
                names = [name.value for name in peer] if peer else list(ENVIRONMENTS)
                contenders += _peers(stack, console, pair, vocabulary.tokenizer, names, skipped)
            contest = Rounds(console, pair, skipped)
            pilot = contest.try_settings(contenders, tasks, clock_of(minutes / 2))
            chosen_settings = fastest_settings(pilot)
            completions = contest.run(chosen_settings, tasks, clock_of(minutes))
        ranks = read_along(pair.draft, completions)
    report = Report(
        conditions=conditions_of(pair, machine, prompts, tasks, completions, contest.curves()),
        ratios=ratios(completions),
        rows=summarise(completions, ranks),
        tried=summarise(pilot, {}),
        skipped=skipped,
    )
    conclude(console, report, "suite", json_file, [*pilot, *completions])


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
