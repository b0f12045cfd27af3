"""What the commands share: the console, warm-up, refusals and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

from bench.conditions import Conditions, Machine
from bench.contest import Completion, Contender, ContenderError
from bench.in_process import DraftProcessError
from bench.measurement import Task
from bench.progress import shown
from bench.prompts import Prompt, PromptsError, check_room, read_prompts
from bench.through_grpc import ServerError
from card.cache import PoolError
from card.engines import EngineError
from card.serving.requests.vocabulary import Vocabulary
from card.settings import REPOSITORY_ROOT, Settings, SettingsError
from card_client import CardError
from card_client.chat_template import ChatTemplateError
from card_gateway.template import read_model

PROMPTS = REPOSITORY_ROOT / "benchmarks" / "prompts" / "suite.jsonl"
RESULTS = REPOSITORY_ROOT / "benchmarks" / "results"
DIFFER, _LACKING, _INTERRUPTED = 1, 2, 130
"""Exit codes: texts differ, something is missing or wrong, Ctrl-C."""
WARM_UP_TOKENS = 16
_FILE_COLUMNS = 240
"""More than the widest table takes: tables are only as wide as they have to be."""

_REFUSALS = (
    SettingsError,
    PromptsError,
    ChatTemplateError,
    EngineError,
    PoolError,
    DraftProcessError,
    ServerError,
)


def make_console() -> Console:
    """A terminal as wide as it is; a file wide enough for the tables, line by line."""
    console = Console()
    if console.is_terminal:
        return console
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return Console(width=_FILE_COLUMNS)


def warn_if_busy(console: Console, machine: Machine) -> None:
    """Say so before anything is measured."""
    if machine.is_busy:
        console.print(f"The machine is busy (load {machine.load:g}): figures will be too low.")


def results_option(name: str) -> Any:
    """``--json``, by default `name` among the results; what cannot be written is refused at once,
    not when all has been measured."""
    return typer.Option(
        "--json",
        help="Where the figures go; Markdown goes beside them.",
        show_default=f"{RESULTS.relative_to(REPOSITORY_ROOT)}/{name}",
        callback=_writable,
    )


def _writable(file: Path | None) -> Path | None:
    probe = RESULTS / "probe.json" if file is None else file
    is_new = not os.path.lexists(probe)
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.open("ab").close()
        if is_new:
            probe.unlink()
    except OSError as error:
        raise typer.BadParameter(f"{probe} cannot be written: {error.strerror}") from error
    return file


def prompts_of(
    settings: Settings, vocabulary: Vocabulary, file: Path, limit: int | None, max_tokens: int
) -> list[Prompt]:
    """The first `limit` prompts of `file`, chats written as the target's template wants them.

    Raises `PromptsError` and `ChatTemplateError`.
    """
    tokenizer = vocabulary.tokenizer
    template, _ = read_model(settings.target.path)
    chosen = read_prompts(file, tokenizer, limit, template.render)
    check_room(chosen, max_tokens, settings.limits)
    return chosen


def tasks_of(prompts: Sequence[Prompt], temperatures: list[float], max_tokens: int) -> list[Task]:
    """All texts to write, prompt after prompt; the seed is the prompt's place."""
    return [
        Task(prompt, temperature, seed, max_tokens)
        for seed, prompt in enumerate(prompts)
        for temperature in temperatures
    ]


def warm_up(
    console: Console,
    contenders: Sequence[Contender],
    task: Task,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Contender]:
    """Every contender writes a few tokens; returns those that could.

    has_time  asked before each setting of a system but its first, which is left out without
    """
    short = replace(task, max_tokens=min(WARM_UP_TOKENS, task.max_tokens))
    able: list[Contender] = []
    with shown(console, "warming up", len(contenders)) as advance:
        for contender in contenders:
            if any(contender.is_like(other) for other in able) and not has_time():
                continue
            try:
                contender.complete(short)
                able.append(contender)
            except ContenderError as error:
                console.print(f"left out: {error}", highlight=False, soft_wrap=True)
            advance()
    if len(able) < len(contenders):
        told = f"settings that take part: {len(able)} of {len(contenders)}"
        console.print(told, highlight=False, soft_wrap=True)
    return able


def say_reservation(console: Console, conditions: Conditions) -> None:
    """Whether so few prompts were measured that the figures have to be read with care."""
    if conditions.reservation is not None:
        console.print(conditions.reservation, style="yellow", highlight=False, soft_wrap=True)


def name_differences(completions: Sequence[Completion]) -> None:
    """Say on standard error which of our texts are not the target's own."""
    for completion in completions:
        contender = completion.contender
        if contender.is_ours and contender.lossless and not completion.equal:
            who, task = completion.contender, completion.task
            print(
                f"error: {who} wrote another text than the "
                f"target alone for prompt {task.prompt.id} at temperature {task.temperature:g}",
                file=sys.stderr,
            )


@contextmanager
def said_in_one_line() -> Iterator[None]:
    """A command that lacks something, or is interrupted, says so and ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except _REFUSALS as error:
        _refuse(str(error))
    except CardError as error:
        _refuse(f"the server answered: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def _refuse(reason: str) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(_LACKING)
