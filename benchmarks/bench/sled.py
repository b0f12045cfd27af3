"""`bench sled`: eight devices, far from one server, whose drafts were recorded before (SLED)."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.conditions import this_machine
from bench.delaying_proxy import delaying_proxy
from bench.options import MaxTokens, PromptsFile, SettingsFile
from bench.progress import shown
from bench.prompts import Prompt
from bench.recorded import Recorded
from bench.terminal import (
    DIFFER,
    PROMPTS,
    make_console,
    prompts_of,
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
    _show(console, measured, agreement)
    texts = {
        tuple(text.ids for text in wave.texts) for found in measured.values() for wave in found
    }
    if len(texts) > 1:
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


def _show(console: Console, measured: Measured, agreement: float) -> None:
    table = Table(title=f"{DEVICES} devices, {agreement:.0%} of what they recorded is right")
    for heading in ("delay", "who waits", "tokens/s", "ratio", "tokens/step", "steps/pass"):
        table.add_column(heading)
    for (delay_ms, way), waves in measured.items():
        alone = measured[delay_ms, next(iter(WAYS))]
        ratio = statistics.median(
            own.tokens / own.seconds / (other.tokens / other.seconds)
            for own, other in zip(waves, alone, strict=True)
        )
        table.add_row(
            f"{delay_ms} ms",
            way,
            f"{statistics.median(wave.tokens / wave.seconds for wave in waves):.0f}",
            f"{ratio:.2f}",
            f"{statistics.median(wave.tokens / wave.steps for wave in waves):.2f}",
            f"{statistics.median(wave.steps / wave.passes for wave in waves):.2f}",
        )
    console.print(table)
