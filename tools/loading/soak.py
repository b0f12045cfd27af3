"""Hours of mixed load, then a verdict: correct texts, no lost slot, no growth."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NoReturn

import psutil
import typer
from rich.console import Console
from rich.table import Column, Table

from card.settings import SettingsError, load_settings
from card_client import CardClient, CardError
from loading.clients import NONSENSE, Crowd, Expected, Tally
from loading.held import MEBIBYTE, Sample, growth, look, write_csv
from loading.service import Service, results_folder, running_service
from loading.supervised import ProcessEndedError
from loading.texts import draw_catalogue

SAMPLE_S = 1.0
FEWEST_SAMPLES = 2
"""A machine that stands still for the whole time takes the second one later, and then ends."""
WARM_UP_S = 60.0
"""Clients come and go for so long before anything is measured, or for a third of the time asked
for if that is less: connections, buffers and threads are made when they are first needed."""
REST_S = 30.0
"""For slots, queue and connections to be given back after the last request."""
MOST_GROWTH = 1.0
"""MiB a minute, of any process and of shared memory: the line through the second half."""
FEW_DESCRIPTORS = 2
"""The server opens some when a thread of its pools first works; a leak opens more."""
SHORTEST_FIT_S = 180.0
"""A line through less is reported, not judged: Python takes 1.8 MiB once, after some 600 requests,
when it makes its table of interned strings anew."""
FEWEST_REQUESTS, REQUESTS_A_MINUTE = 24, 6
LACKING = 2

console = Console()


def soak(
    minutes: Annotated[float, typer.Option(help="How long the clients go on.", min=0.05)] = 10.0,
    seed: Annotated[int, typer.Option(help="Another seed, other requests.")] = 1,
    clients: Annotated[
        int | None,
        typer.Option(help="Clients at once.", min=1, show_default="half as many more than slots"),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Different requests.", min=1, show_default="24 and 6 more a minute"),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (YAML).", show_default="built in")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for samples and log.", show_default="build/soak/TIME"),
    ] = None,
) -> None:
    """Start a server, load it with clients of every kind, and judge what it did.

    Exit codes: 0 nothing was wrong; 1 something was, said in one line each; 2 it does not start.
    """
    try:
        values = load_settings(settings)
    except SettingsError as error:
        _refuse(str(error))
    folder = results_folder(output, "soak")
    chosen = requests or FEWEST_REQUESTS + round(REQUESTS_A_MINUTE * minutes)
    crowd = clients or values.cache.slots * 3 // 2
    told = f"seed {seed}, {crowd} clients, {chosen} requests; log and samples in {folder}"
    console.print(told, soft_wrap=True)
    try:
        with running_service(values, settings, folder / "service.log") as service:
            found = asyncio.run(_soak(service, seed, chosen, crowd, minutes * 60))
    except ProcessEndedError as error:
        _refuse(f"{error}; see {folder / 'service.log'}")
    except CardError as error:
        _refuse(f"a request failed before the load: {error}")
    write_csv(folder / "samples.csv", found.samples)
    wrong = found.judge(minutes * 60)
    found.show(minutes * 60)
    for line in wrong:
        console.print(f"WRONG  {line}", style="red", highlight=False, markup=False)
    console.print(f"verdict: {'FAILED' if wrong else 'passed'}", style="red" if wrong else "green")
    raise typer.Exit(1 if wrong else 0)


@dataclass
class Observed:
    """All that was seen; `judge` says what of it is wrong.

    resting  idle, before the load but with everything used once; `rested` idle again, after it
    busy     slots in use and requests in the queue after the end
    """

    tally: Tally
    resting: Sample
    rested: Sample
    samples: list[Sample] = field(default_factory=list)
    busy: tuple[float, float] = (0.0, 0.0)
    incidents: list[str] = field(default_factory=list)

    def judge(self, seconds: float) -> list[str]:
        """Each problem in one line; empty if there is none."""
        wrong = [*self.tally.failures, *self.incidents]
        if self.tally.compared == 0:
            wrong.append("no text was completed, so nothing was compared")
        if any(self.busy):
            slots, queued = self.busy
            wrong.append(f"{slots:g} slots in use and {queued:g} requests queued after the end")
        for name in self.resting.bytes_held if seconds / 2 >= SHORTEST_FIT_S else ():
            if (slope := growth(self.samples, name)) >= MOST_GROWTH:
                wrong.append(
                    f"{name} grows by {slope:.2f} MiB a minute over the second half; "
                    f"less than {MOST_GROWTH:g} is allowed"
                )
        for name, before in self.resting.descriptors.items():
            if (after := self.rested.descriptors[name]) > before + FEW_DESCRIPTORS:
                wrong.append(f"{name} holds {after} file descriptors at rest, {before} before")
        return wrong

    def show(self, seconds: float) -> None:
        """The figures, as tables."""
        outcomes = Table("outcome", "requests", title="Requests")
        for outcome, count in self.tally.outcomes.most_common():
            outcomes.add_row(outcome, str(count))
        outcomes.add_row("texts compared with their references", str(self.tally.compared))
        fit = "MiB a minute" if seconds / 2 >= SHORTEST_FIT_S else "MiB a minute (too short)"
        whole = Column("", no_wrap=True)
        held = Table(whole, "MiB at rest", "most", "at the end", fit, "descriptors", title="Held")
        for name, before in self.resting.bytes_held.items():
            after = self.rested.bytes_held[name]
            most = max(one.bytes_held[name] for one in (*self.samples, self.rested))
            fds = [str(one.descriptors.get(name, "")) for one in (self.resting, self.rested)]
            held.add_row(
                name,
                *(f"{size / MEBIBYTE:.1f}" for size in (before, most, after)),
                f"{growth(self.samples, name):+.2f}",
                " → ".join(filter(None, fds)),
            )
        console.print(outcomes, held)


async def _soak(
    service: Service, seed: int, requests: int, clients: int, seconds: float
) -> Observed:
    """References one after another, then the crowd, then rest. Raises `CardError`."""
    with console.status("computing the references, one request at a time"):
        expected = await _references(service, seed, requests)
    crowd = Crowd(service.grpc, expected, seed)
    with console.status("warming up"):
        await _leave_unread(service, expected, clients)
        warm = asyncio.Event()
        asyncio.get_running_loop().call_later(min(WARM_UP_S, seconds / 3), warm.set)
        await crowd.run(clients, warm)
    await _until_at_rest(service)
    processes, directory = service.processes(), service.settings.cache.directory
    resting = look(processes, directory, 0.0)
    found = Observed(crowd.tally, resting, resting)
    stop, started = asyncio.Event(), time.monotonic()
    running = asyncio.create_task(crowd.run(clients, stop))
    with console.status("") as status:
        while not running.done():
            passed = time.monotonic() - started
            try:
                if not stop.is_set():
                    found.samples.append(look(processes, directory, passed))
            except psutil.NoSuchProcess as error:
                found.incidents.append(f"a process died under load: {error}")
                stop.set()
            if passed >= seconds and len(found.samples) >= FEWEST_SAMPLES:
                stop.set()
            status.update(f"{passed:.0f} of {seconds:.0f} s, {crowd.tally.compared} texts compared")
            await asyncio.wait({running}, timeout=SAMPLE_S)
    await running
    try:
        found.busy = await _until_at_rest(service)
        if (now := service.processes()) != processes:
            found.incidents.append(f"processes were replaced: {processes} became {now}")
        else:
            found.rested = await _settled(service, processes, found.resting)
    except (OSError, psutil.NoSuchProcess) as error:
        found.incidents.append(f"the service is not there any more at the end: {error}")
    return found


async def _references(service: Service, seed: int, requests: int) -> list[Expected]:
    catalogue = draw_catalogue(service.settings, seed, requests)
    async with CardClient(service.grpc) as client:
        with suppress(CardError):  # what the first refusal opens stays open and is no growth
            await client.generate(replace(catalogue[0], **NONSENSE[0]))
        return [await Expected.of(client, request) for request in catalogue]


async def _leave_unread(service: Service, expected: list[Expected], clients: int) -> None:
    """A long text in every slot that no client reads: it waits in the server's memory, of which the
    server keeps the most that it ever held. Otherwise chance decides when it comes to that."""
    longest = max((one.request for one in expected), key=lambda request: request.max_tokens or 0)
    async with AsyncExitStack() as stack:
        unread = []
        for _ in range(min(clients, service.settings.cache.slots)):
            own = await stack.enter_async_context(CardClient(service.grpc))
            deltas = own.stream(replace(longest, end_id=-1))
            unread.append(await stack.enter_async_context(aclosing(deltas)))
        await asyncio.gather(*(anext(deltas) for deltas in unread))
        await _until_at_rest(service)


async def _until_at_rest(service: Service) -> tuple[float, float]:
    """Wait until no slot is in use and no request queued; returns what remains after `REST_S`."""
    limit = time.monotonic() + REST_S
    while any(busy := service.busy()) and time.monotonic() < limit:
        await asyncio.sleep(SAMPLE_S)
    return busy


async def _settled(service: Service, processes: dict[str, int], before: Sample) -> Sample:
    """A look at rest, once connections are closed; the last one after `REST_S`."""
    limit = time.monotonic() + REST_S
    while True:
        now = look(processes, service.settings.cache.directory, 0.0)
        grown = any(now.descriptors[name] > count for name, count in before.descriptors.items())
        if not grown or time.monotonic() > limit:
            return now
        await asyncio.sleep(SAMPLE_S)


def _refuse(reason: str) -> NoReturn:
    console.print(f"error: {reason}", style="red", highlight=False, markup=False)
    raise typer.Exit(LACKING)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(soak)
    app(prog_name="scripts/soak")
