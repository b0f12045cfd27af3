"""How soon a full service refuses: every slot and place in the queue taken, and one client more.

Beside each refusal the same client asks the server whether it is live, which no model has a part
in: what that takes, the machine takes.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from card.settings import SettingsError, load_settings
from card_client import CardClient, CardError, GenerateRequest
from card_client.channel import channel_options
from loading.crowd import PAUSE_S, crowd
from loading.service import running_service
from loading.supervised import SupervisorEndedError, last_words

WANTED_MS = 10.0
WRONG, LACKING = 1, 2
_MORE = 4
"""Clients more than have room, so that whoever ends is followed at once."""
_FULL_S = 120.0
_ANSWER_S = 30.0
_QUEUED_S = 1.0
"""Whoever has heard nothing by then has found a place that somebody had just left."""

console = Console()


def flood(
    requests: Annotated[int, typer.Option(help="Refusals to measure.", min=1)] = 150,
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (YAML).", show_default="built in")
    ] = None,
) -> None:
    """Start a server, fill it, and measure how long one client more waits to be refused.

    Exit codes: 0 every refusal was UNAVAILABLE; 1 one was another; 2 it does not start.
    """
    try:
        values = load_settings(settings)
    except SettingsError as error:
        _end(LACKING, f"error: {error}")
    room = values.cache.slots + values.limits.queued_requests
    with tempfile.TemporaryDirectory(prefix="card-flood-") as folder:
        log = Path(folder) / "service.log"
        try:
            with (
                running_service(values, settings, log) as service,
                crowd(service.grpc, room + _MORE),
            ):
                refusals, bare = asyncio.run(_measure(service.grpc, requests))
        except SupervisorEndedError:
            with log.open("rb") as said:
                _end(LACKING, last_words(said))
        except CardError as error:
            _end(WRONG, f"WRONG  {error}")
    console.print(
        f"{len(refusals)} refusals while {room} requests had all slots and the queue: "
        f"{_described(refusals)}\nbeside them, whether the server is live: {_described(bare)}",
        highlight=False,
        soft_wrap=True,
    )


def _described(taken_ms: list[float]) -> str:
    within = sum(ms <= WANTED_MS for ms in taken_ms) / len(taken_ms)
    return (
        f"median {statistics.median(taken_ms):.1f} ms, {within:.0%} within {WANTED_MS:g} ms, "
        f"slowest {max(taken_ms):.0f} ms"
    )


async def _measure(address: str, requests: int) -> tuple[list[float], list[float]]:
    """Milliseconds until each of so many requests was refused, and until each question beside them
    whether the server is live was answered. Raises `CardError` for another answer than that the
    service is full."""
    taken_ms: list[float] = []
    bare_ms: list[float] = []
    limit_s = time.monotonic() + _FULL_S
    bare = InferenceServerClient(address, channel_args=channel_options(address))
    async with CardClient(address) as client, bare:
        while len(taken_ms) < requests:
            await asyncio.sleep(PAUSE_S)
            live_ms = await _bare_ms(bare)
            await asyncio.sleep(PAUSE_S)  # neither wakes anybody for the other
            started = time.perf_counter()
            try:
                await client.generate(GenerateRequest("def", max_tokens=1), timeout_s=_QUEUED_S)
            except CardError as error:
                if error.code == "UNAVAILABLE":
                    taken_ms.append((time.perf_counter() - started) * 1e3)
                    bare_ms.append(live_ms)
                elif error.code != "DEADLINE_EXCEEDED":
                    raise
            if time.monotonic() > limit_s:
                raise CardError("INTERNAL", f"only {len(taken_ms)} requests found it full")
    return taken_ms, bare_ms


async def _bare_ms(client: InferenceServerClient) -> float:
    """Milliseconds until the server said that it is live. Raises `CardError`."""
    started = time.perf_counter()
    try:
        await client.is_server_live(client_timeout=_ANSWER_S)
    except InferenceServerException as error:
        raise CardError("UNAVAILABLE", f"the server does not say it is live: {error}") from error
    return (time.perf_counter() - started) * 1e3


def _end(code: int, reason: str) -> NoReturn:
    console.print(reason, style="red", highlight=False, markup=False)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(flood)
    app(prog_name="scripts/flood")
