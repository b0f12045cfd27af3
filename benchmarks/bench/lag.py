"""`bench lag`: tokens of a block that the target accepts, by how late its hidden states are.

The target writes a text behind each prompt. At places of that text each draft makes one greedy
block by its own drafter, with the states of all tokens but the newest ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from bench import terminal
from bench.chats import read_chats
from bench.conditions import where_and_when
from bench.in_process import parameters_of
from bench.lag_blocks import Blocks, Written, states_of
from bench.measurement import Task
from bench.prompts import Prompt, check_room
from bench.report import store, table
from card.loading import load_engine
from card.settings import CacheSettings, Settings, load_settings
from writing import write_alone

LAGS = range(17)
_Z = 1.96


@dataclass(frozen=True)
class Curve:
    """
    draft     its folder
    drafter   its kind
    taps      hidden states that it reads; empty: none, so that no lag matters
    accepted  by lag, the mean number of accepted tokens of each text
    """

    draft: str
    drafter: str
    taps: Sequence[int]
    accepted: Mapping[int, Sequence[float]]

    def at(self, lag: int) -> tuple[float, float]:
        """The mean over texts, and half of its 95 % interval."""
        counts = self.accepted[lag if self.taps else 0]
        return fmean(counts), _Z * stdev(counts) / len(counts) ** 0.5


def lag(
    drafts: Annotated[list[Path], typer.Argument(help="Folders of heads, or of other drafts.")],
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    limit: Annotated[int, typer.Option(min=2, help="Use the first prompts only.")] = 16,
    max_tokens: terminal.MaxTokens = 128,
    block: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 6,
    places: Annotated[int, typer.Option(min=1, help="Blocks in a text.")] = 8,
    json_file: terminal.JsonFile = None,
    settings_file: terminal.SettingsFile = None,
) -> None:
    """Count the accepted tokens of a block when the newest 0 to 16 tokens have no states."""
    load_before, console = round(os.getloadavg()[0], 2), Console()
    with terminal.said_in_one_line(), console.status("loading") as status:
        curves: list[Curve] = []
        texts: list[list[int]] = []
        for path in drafts:
            settings = load_settings(settings_file, draft={"path": str(path)})
            settings = settings.model_copy(update={"cache": CacheSettings(slots=1)})
            _, read = read_chats(settings.target.path, prompts, limit)
            check_room(read, max_tokens, settings.limits)
            written = list(_written(settings, read, texts, max_tokens, status))
            curves.append(_curve(settings, written, block, places, status))
    content = {
        **where_and_when(load_before),
        "prompts": str(prompts),
        "block": block,
        "places": places,
        "curves": [
            {"draft": curve.draft, "drafter": curve.drafter, "taps": [*curve.taps]}
            | {"accepted": {late: curve.at(late) for late in curve.accepted}}
            for curve in curves
        ],
    }
    shown = markdown(curves, block)
    console.print(shown, highlight=False, markup=False, soft_wrap=True)
    file = json_file or terminal.results_file(content["date"], "lag")
    for path in store(file, content, f"{shown}\n"):
        console.print(str(path), soft_wrap=True)


def _written(
    settings: Settings,
    prompts: Sequence[Prompt],
    texts: list[list[int]],
    max_tokens: int,
    status: Status,
) -> Iterator[Written]:
    """The target's greedy texts with the states that this draft reads. `texts` holds those that
    are written, and takes the others."""
    target = load_engine(settings, "target")
    for number, prompt in enumerate(prompts):
        status.update(f"{settings.draft.path}: text {number + 1} of {len(prompts)}")
        if number == len(texts):
            parameters = parameters_of(Task(prompt, 0.0, number, max_tokens))
            texts.append(write_alone(target, prompt.tokens, parameters, max_tokens))
        tokens = [*prompt.tokens, *texts[number]]
        yield Written(tokens, len(prompt.tokens), states_of(target, tokens))


def _curve(
    settings: Settings, written: Sequence[Written], block: int, places: int, status: Status
) -> Curve:
    blocks = Blocks(load_engine(settings, "draft"), settings, block)
    taps = settings.draft.taps if settings.has_head else ()
    accepted: dict[int, list[float]] = {}
    for late in LAGS if taps else (0,):
        status.update(f"{settings.draft.path}: lag {late}")
        accepted[late] = [blocks.accepted(text, places, late) for text in written]
    return Curve(str(settings.draft.path), settings.drafter, taps, accepted)


def markdown(curves: Sequence[Curve], block: int) -> str:
    """A row for each lag, a column for each draft."""
    names = [f"{Path(curve.draft).name} ({curve.drafter})" for curve in curves]
    rows = [
        [late, *("{:.2f} ± {:.2f}".format(*curve.at(late)) for curve in curves)] for late in LAGS
    ]
    return "\n".join(table([f"lag, of a block of {block}", *names], rows))
