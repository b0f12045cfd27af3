"""`bench sled`: eight devices, far from one server, whose drafts were recorded before (SLED)."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.cells import Cells, Columns, table
from bench.conclusion import keep
from bench.conditions import Machine, portable, this_machine
from bench.delaying_proxy import delaying_proxy
from bench.options import MaxTokens, PromptsFile, SettingsFile
from bench.progress import shown
from bench.prompts import Prompt
from bench.recorded import Recorded
from bench.report import draw, page
from bench.terminal import (
    DIFFER,
    PROMPTS,
    make_console,
    prompts_of,
    results_option,
    said_in_one_line,
    warn_if_busy,
)
from bench.through_grpc import ThroughGrpc, through_grpc
from card.serving.requests.vocabulary import Vocabulary
from card.settings import load_settings
from card.speculation.pacing import PLAIN
from card_client import CardClient, Delta, GenerateRequest
from card_client.edge import stream

DEVICES = 8
AHEAD = 8
DELAYS_MS = (0, 20, 80)
WAYS = {"the server alone": PLAIN, "in turns": "draft_then_verify", "nobody waits": "card"}
"""How devices and the server share the work, and the pacing of it."""


@dataclass(frozen=True)
class Text:
    """One device's text, and the target's steps for it."""

    ids: tuple[int, ...]
    steps: int


@dataclass(frozen=True)
class Wave:
    """What all devices wrote at once.

    passes  of the target, each for all devices that have sent
    """

    texts: tuple[Text, ...]
    seconds: float
    passes: int

    @property
    def tokens(self) -> int:
        return sum(len(text.ids) for text in self.texts)

    @property
    def steps(self) -> int:
        return sum(text.steps for text in self.texts)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """Of all texts."""
        return [text.ids for text in self.texts]


@dataclass(frozen=True)
class SledRow:
    """Eight devices at one distance, with one way to share the work; medians over the rounds.

    way             a key of `WAYS`; `decoding` is its pacing
    ratio           of tokens per second to those of the server alone at this distance
    steps_per_pass  texts that share a pass of the target
    texts_equal     every text is what the server alone wrote first
    """

    delay_ms: int
    way: str
    decoding: str
    tokens_per_s: float
    ratio: float
    tokens_per_step: float
    steps_per_pass: float
    texts_equal: bool


def sled(
    prompts: PromptsFile = PROMPTS,
    max_tokens: MaxTokens = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Of each kind; medians count.")] = 3,
    agreement: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the recorded tokens that are right.")
    ] = 0.6,
    delay: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="Milliseconds that each byte takes longer, each way. May be repeated.",
            show_default=", ".join(map(str, DELAYS_MS)),
        ),
    ] = None,
    json_file: Annotated[Path | None, results_option("DATE-sled.json")] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Measure eight devices that draft for one server, far away, against the server alone."""
    machine, console = this_machine(), make_console()
    warn_if_busy(console, machine)
    with said_in_one_line():
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, DEVICES, max_tokens)
        with console.status("starting the server"):
            server = through_grpc(settings, settings_file)
        with server as running:
            delays = list(dict.fromkeys(delay or DELAYS_MS))
            measured = asyncio.run(
                _measure(console, running, chosen, max_tokens, rounds, agreement, delays)
            )
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = SledReport(
        command=shlex.join(["./scripts/bench", *sys.argv[1:]]),
        date=date,
        machine=machine,
        settings=portable(settings),
        max_tokens=max_tokens,
        rounds=rounds,
        agreement=agreement,
        rows=rows_of(measured),
    )
    draw(console, found.tables())
    keep(console, found, date, "sled", json_file)
    if not all(row.texts_equal for row in found.rows):
        print("error: the texts of devices are not those of the target alone", file=sys.stderr)
        raise typer.Exit(DIFFER)


Measured = dict[tuple[int, str], list[Wave]]
"""By delay and way."""


async def _measure(
    console: Console,
    server: ThroughGrpc,
    prompts: Sequence[Prompt],
    max_tokens: int,
    rounds: int,
    agreement: float,
    delays_ms: Sequence[int],
) -> Measured:
    found: Measured = {(delay, way): [] for delay in delays_ms for way in WAYS}
    nobody = [None] * len(prompts)
    known = (await _wave(server, prompts, max_tokens, 0, PLAIN, nobody)).texts
    devices = [Recorded(text.ids, 1.0 - agreement) for text in known]
    with shown(console, "texts of all devices", rounds * len(found)) as advance:
        for _ in range(rounds):
            for (delay_ms, way), waves in found.items():
                drafting = nobody if WAYS[way] == PLAIN else devices
                waves.append(
                    await _wave(server, prompts, max_tokens, delay_ms, WAYS[way], drafting)
                )
                advance()
    return found


async def _wave(
    server: ThroughGrpc,
    prompts: Sequence[Prompt],
    max_tokens: int,
    delay_ms: int,
    decoding: str,
    devices: Sequence[Recorded | None],
) -> Wave:
    """All prompts at once, each by a client of its own; None: without a device."""
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(delaying_proxy(server.address, delay_ms / 1e3))
        clients = [await stack.enter_async_context(CardClient(address)) for _ in prompts]
        passes, started = server.target_passes, time.perf_counter()
        texts = await asyncio.gather(
            *(
                _text(client, prompt, max_tokens, decoding, device)
                for client, prompt, device in zip(clients, prompts, devices, strict=True)
            )
        )
        seconds = time.perf_counter() - started
    return Wave(tuple(texts), seconds, server.target_passes - passes)


async def _text(
    client: CardClient, prompt: Prompt, max_tokens: int, decoding: str, device: Recorded | None
) -> Text:
    request = GenerateRequest(
        prompt.text,
        max_tokens,
        end_id=-1,
        decoding=decoding,
        forbidden_drafter="ngram",
        skip_reading_prefix_cache=True,
        return_perf_metrics=True,
    )
    deltas: AsyncIterator[Delta]
    if device is None:  # the key lets the server tell the tokens
        deltas = client.stream(replace(request, draft_key=secrets.token_hex(16)))
    else:
        whole = decoding == WAYS["in turns"]
        deltas = stream(client, request, device, ahead=AHEAD, whole=whole)
    ids: list[int] = []
    steps = 0
    async for delta in deltas:
        ids += delta.output_ids
        steps = delta.target_steps or 0
    return Text(tuple(ids), steps)


def rows_of(measured: Measured) -> list[SledRow]:
    """Medians of each delay and way."""
    own = next(iter(measured.values()))[0].ids
    return [
        SledRow(
            delay_ms=delay_ms,
            way=way,
            decoding=WAYS[way],
            tokens_per_s=statistics.median(wave.tokens_per_s for wave in waves),
            ratio=statistics.median(
                wave.tokens_per_s / alone.tokens_per_s
                for wave, alone in zip(waves, measured[delay_ms, next(iter(WAYS))], strict=True)
            ),
            tokens_per_step=statistics.median(wave.tokens / wave.steps for wave in waves),
            steps_per_pass=statistics.median(wave.steps / wave.passes for wave in waves),
            texts_equal=all(wave.ids == own for wave in waves),
        )
        for (delay_ms, way), waves in measured.items()
    ]


@dataclass(frozen=True)
class SledReport:
    """Everything that `bench sled` found."""

    command: str
    date: str
    machine: Machine
    settings: dict[str, Any]
    max_tokens: int
    rounds: int
    agreement: float
    rows: list[SledRow]

    def tables(self) -> list[Cells]:
        title = f"{DEVICES} devices, {self.agreement:.0%} of what they recorded is right"
        return [table(title, _COLUMNS, self.rows)]

    def content(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self) -> str:
        how = f"{self.max_tokens} tokens a text, medians of {self.rounds}."
        return page("Devices that draft", self.command, self.date, self.machine, how, self.tables())


_COLUMNS: Columns[SledRow] = (
    ("delay", lambda row: f"{row.delay_ms} ms"),
    ("who waits", lambda row: row.way),
    ("tokens/s", lambda row: f"{row.tokens_per_s:.0f}"),
    ("ratio", lambda row: f"{row.ratio:.2f}"),
    ("tokens/step", lambda row: f"{row.tokens_per_step:.2f}"),
    ("steps/pass", lambda row: f"{row.steps_per_pass:.2f}"),
    ("texts", lambda row: "equal" if row.texts_equal else "DIFFER"),
)
