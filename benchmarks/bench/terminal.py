"""Options and exit codes that the commands share."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.prompts import PromptsError
from bench.runner import ContenderError
from bench.served import ServerError
from card.cache import PoolError
from card.engines import EngineError
from card.settings import REPOSITORY_ROOT, SettingsError
from card_client import CardError
from card_client.chat_template import ChatTemplateError
from refusal import refuse

PROMPTS = REPOSITORY_ROOT / "benchmarks" / "prompts" / "suite.jsonl"
RESULTS = REPOSITORY_ROOT / "benchmarks" / "results"
TEMPERATURES = (0.0, 0.8)
DIFFER, _INTERRUPTED = 1, 130
"""Exit codes: texts differ, Ctrl-C."""
_REFUSALS = (
    SettingsError, PromptsError, ChatTemplateError, EngineError, PoolError, ContenderError,
    ServerError,
)  # fmt: skip

PromptsFile = Annotated[
    Path, typer.Option(help="JSONL: id, category, and prompt or messages in each line.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Use the first prompts only.", show_default="all")
]
MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens written for a prompt.")]
Minutes = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="No prompt is begun later, counted from the first one. Settings are chosen in half "
        "the time.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="Another settings file (YAML).", show_default="built in"),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(
        help="Sampling temperature. May be repeated.",
        show_default=", ".join(f"{t:g}" for t in TEMPERATURES),
        min=0,
    ),
]


def writable(file: Path | None) -> Path | None:
    """Refuse a file that cannot be written at once, not when everything has been measured."""
    probe = file or RESULTS / "probe.json"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        with probe.open("ab") as opened:
            is_new = opened.tell() == 0
        if is_new:
            probe.unlink()
    except OSError as error:
        raise typer.BadParameter(f"{probe} cannot be written: {error.strerror}") from error
    return file


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        help="Where the figures go; Markdown goes beside them.",
        show_default=f"{RESULTS.relative_to(REPOSITORY_ROOT)}/DATE-COMMAND.json",
        callback=writable,
    ),
]


def results_file(date: str, title: str) -> Path:
    """Where the figures of a command go by default.

    date  in ISO 8601, in UTC
    """
    return RESULTS / f"{date.replace(':', '').split('+')[0]}-{title}.json"


@dataclass(frozen=True)
class Extent:
    """The options of a command. `slots` is the number of streams at once."""

    prompts: Path
    max_tokens: int
    json_file: Path | None
    settings_file: Path | None
    limit: int | None = None
    minutes: float = 60.0
    temperatures: Sequence[float] | None = None
    slots: int = 1


@contextmanager
def said_in_one_line() -> Iterator[None]:
    """A command that lacks something, or is interrupted, says so and ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except _REFUSALS as error:
        refuse(error)
    except CardError as error:
        refuse(f"the server answered: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
