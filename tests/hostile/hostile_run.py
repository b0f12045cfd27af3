"""What `scripts/faults --hostile` does: attack a served pair with every kind, and judge what others
met.

hostile_kinds    the attacks, one row a kind, each with a harmless load of the same shape
hostile_bodies   the largest and worst body of every endpoint, and small ones
honest_streams   eight streams of known texts, and probes beside them
hostile_place    the service under attack: ports, processes, metric series
hostile_verdict  what each kind did to others, and which promises that breaks
"""

from __future__ import annotations

import asyncio
import ipaddress
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.error import URLError
from urllib.parse import urlsplit

import psutil
import typer
from honest_streams import Honest, HonestError, Seen
from hostile_bodies import LARGE, made
from hostile_kinds import KINDS, Kind, answer_to, attack, http
from hostile_place import Place, own_place
from hostile_verdict import GUIDE_S, HEALTH_S, Found, Span, kinds_table
from rich.console import Console
from rich.table import Table

from card.settings import SettingsError, load_settings
from loading.service import results_folder
from loading.supervised import ProcessEndedError

WRONG, LACKING = 1, 2
STREAMS, ROUNDS = 8, 2
_WARM_UP_S = 10.0
_WELL_S = 120.0
"""A service that an attack has made ill has so long to be well again."""
_SETTLES_S = 8.0
"""Engines return freed memory every five seconds, so what they hold is read later than that."""
_LOOK_S = 0.1
_QUIET_S = 1.5
_MIB = 1 << 20

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 150)


def hostile(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long all attacks take.")] = 2.0,
    only: Annotated[
        str | None, typer.Option(help="Kinds to send, by parts of names.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other requests.")] = 1,
    url: Annotated[
        str | None,
        typer.Option(help="A running gateway on this machine.", show_default="one of its own"),
    ] = None,
    health_port: Annotated[int, typer.Option(help="Of the running service.")] = 8003,
    metrics_port: Annotated[int, typer.Option(help="Of the running service.")] = 8002,
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (YAML).", show_default="built in")
    ] = None,
) -> None:
    """Attack a served pair with every kind, eight honest streams beside, and judge what they met.

    Exit codes: 0 every promise was kept; 1 one was broken; 2 there is no service to attack.
    """
    wanted = only.split(",") if only else [""]
    kinds = [kind for kind in KINDS if any(part.strip() in kind.name for part in wanted)]
    if not kinds:
        _refuse(f"--only is {only!r}; the kinds are {', '.join(kind.name for kind in KINDS)}")
    window_s = 60 * minutes / len(kinds) / ROUNDS
    try:
        if url is not None:
            broken = _attack(_running(url, health_port, metrics_port), kinds, window_s, seed)
        else:
            log = results_folder(None, "hostile") / "service.log"
            console.print(f"the service's log: {log}")
            with own_place(load_settings(settings), settings, log) as place:
                broken = _attack(place, kinds, window_s, seed)
    except URLError as error:
        _refuse(f"no service answers on --url, --health-port and --metrics-port: {error.reason}")
    except (SettingsError, ProcessEndedError, HonestError, OSError) as error:
        _refuse(str(error))
    for line in broken:
        console.print(f"BROKEN  {line}", style="red", markup=False)
    console.print("verdict: FAILED" if broken else "verdict: passed")
    raise typer.Exit(WRONG if broken else 0)


def _refuse(why: str) -> NoReturn:
    console.print(f"error: {why}", style="red", markup=False)
    raise typer.Exit(LACKING)


def _running(url: str, health_port: int, metrics_port: int) -> Place:
    """Raises `OSError` for an address that is not of this machine alone."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = "127.0.0.1" if parts.hostname == "localhost" else str(parts.hostname)
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return Place(host, parts.port or 9000, health_port, metrics_port)
    raise OSError(f"--url is {url}; it must be on loopback: this command attacks no other machine")


def _attack(place: Place, kinds: Sequence[Kind], window_s: float, seed: int) -> list[str]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
        return asyncio.run(_Run(place, attackers, seed).all(kinds, window_s))


class _Run:
    """One run against one service; `attackers` are a process of their own, so that they do not slow
    what is measured here."""

    def __init__(self, place: Place, attackers: ProcessPoolExecutor, seed: int) -> None:
        self._place, self._attackers, self._seed = place, attackers, seed
        self._url = f"http://{place.host}:{place.gateway}"
        self._processes = place.processes()

    async def all(self, kinds: Sequence[Kind], window_s: float) -> list[str]:
        """Every kind, then every large body; what was broken."""
        honest = Honest(self._url, STREAMS)
        await honest.fill()
        async with honest.streaming():
            await asyncio.sleep(_WARM_UP_S)
            found = []
            for kind in kinds:
                console.print(f"{kind.name}: {ROUNDS} times {window_s:.1f} s")
                found.append(await self._kind(kind, window_s, honest.seen))
        console.print(kinds_table(found, honest.seen))
        slow = await self._stalls()
        broken = [f"{one.kind.name}: {what}" for one in found for what in one.broken(honest.seen)]
        gone = [name for name, process in self._processes.items() if not process.is_running()]
        return [*broken, *slow, *(f"the process of {name} died" for name in gone)]

    async def _kind(self, kind: Kind, window_s: float, seen: Seen) -> Found:
        found = Found(kind, held=[self._held()], series=[await self._series()])
        watching = asyncio.create_task(self._watch_memory(found))
        for _ in range(ROUNDS):
            span, _ = await self._window(kind, False, window_s)
            found.harmless.append(span)
            await self._until_well(seen)
            span, answers = await self._window(kind, True, window_s)
            found.hostile.append(span)
            found.answers += answers
            await self._until_well(seen)
            found.aftermath.append(Span(span.start_s, time.monotonic()))
            await asyncio.sleep(_SETTLES_S)
            found.held.append(self._held())
            found.series.append(await self._series())
        watching.cancel()
        return found

    async def _window(
        self, kind: Kind, hostile: bool, window_s: float
    ) -> tuple[Span, Counter[str]]:
        self._seed += 1
        began_s = time.monotonic()
        load = kind.name, hostile, self._place, window_s, self._seed
        answers = await self._apart(attack, *load)
        return Span(began_s, time.monotonic()), answers

    async def _apart(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._attackers, act, *arguments)

    async def _until_well(self, seen: Seen) -> None:
        """Wait until /health answers at once, texts flow and a new guide is answered."""
        now = Span(time.monotonic())
        while time.monotonic() < now.start_s + _WELL_S:
            await asyncio.sleep(_LOOK_S)
            healths, guides = now.of(seen.healths), now.of(seen.guides)
            answered = healths and guides and healths[-1] < HEALTH_S and guides[-1] < GUIDE_S
            if answered and len(now.of(seen.tokens)) >= STREAMS:
                return

    async def _series(self) -> int:
        return await asyncio.to_thread(self._place.series)

    def _held(self) -> dict[str, float]:
        """MiB of resident memory of every process that lives."""
        held = {}
        for name, process in self._processes.items():
            with suppress(psutil.NoSuchProcess):
                held[name] = process.memory_info().rss / _MIB
        return held

    async def _watch_memory(self, found: Found) -> None:
        while True:
            found.peak_mib = max(found.peak_mib, sum(self._held().values()))
            await asyncio.sleep(_LOOK_S)

    async def _stalls(self) -> list[str]:
        """Send each large body once, beside one stream, and print the figures; the bodies that
        stalled /health."""
        headings = (
            "body",
            "endpoint",
            "bytes",
            "answer",
            "took s",
            "gap s",
            "quiet s",
            "/health s",
        )
        table = Table(*headings, title="One stream beside each largest body", padding=(0, 0))
        honest, slow = Honest(self._url, 1), []
        async with honest.streaming():
            for name in LARGE:
                path, body = made(name)
                quiet = Span(time.monotonic())
                await asyncio.sleep(_QUIET_S)
                quiet_s = max(quiet.of(honest.seen.gaps), default=_QUIET_S)
                sent = Span(time.monotonic())
                load = self._place.host, self._place.gateway, http(path, body)
                status = await self._apart(_ask, *load)
                took_s = time.monotonic() - sent.start_s
                await self._until_well(honest.seen)
                gap_s, health_s = (
                    max(sent.of(events), default=took_s)
                    for events in (honest.seen.gaps, honest.seen.healths)
                )
                figures = (f"{value:.2f}" for value in (took_s, gap_s, quiet_s, health_s))
                table.add_row(name, path, f"{len(body):,}", status, *figures)
                if health_s > HEALTH_S:
                    slow.append(f"{name} to {path}: /health took {health_s:.1f} s")
        console.print(table)
        return slow


def _ask(host: str, port: int, request: bytes) -> str:
    return asyncio.run(answer_to(host, port, request))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(hostile)
    app(prog_name="scripts/faults --hostile")
