"""What `scripts/faults` does: cells of the matrix on one service, and a verdict."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from fault_cells import Cell
from fault_matrix import Ordeal, Tally
from rich.console import Console
from running_service import RunningService, running_service
from traces import TRACES, Traces

console = Console(highlight=False, soft_wrap=True)


def main(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long to go on.")] = 5.0,
    seed: Annotated[int | None, typer.Option(help="Repeats a run's cells.")] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Each cell of the matrix once, however long it takes.")
    ] = False,
) -> None:
    """Strike processes of a real service at random; every text, recovery and health is checked.

    Exit codes: 0 nothing was wrong; 1 something was, and the service's log is kept and named; 2
    this machine lacks something, said in one line.

    `scripts/faults --hostile` attacks a service instead: `scripts/faults --hostile --help`.
    """
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    cells = _drawn(random.Random(seed), minutes)
    if every:
        cells = iter(Cell.every())
    console.print("the whole matrix" if every else f"seed {seed}, {minutes:g} minutes")
    folder = Path(tempfile.mkdtemp(prefix="card-faults-"))
    with running_service(folder, {}) as service:
        ordeal = Ordeal(service)
        tally = ordeal.tally
        asyncio.run(_endure(ordeal, cells))
        tally.failures += _left_behind(service)
    _report(tally)
    if tally.failures:
        console.print(f"the service's log: {service.log}")
        sys.exit(1)
    shutil.rmtree(folder)


def _drawn(draw: random.Random, minutes: float) -> Iterator[Cell]:
    end_s = time.monotonic() + 60 * minutes
    while time.monotonic() < end_s:
        yield Cell.draw(draw)


async def _endure(ordeal: Ordeal, cells: Iterator[Cell]) -> None:
    await ordeal.prepare()
    for number, cell in enumerate(cells, 1):
        began_s = time.monotonic()
        try:
            wrong = await ordeal.endure(cell)
        except AssertionError as error:  # the service did not get as far as being struck
            wrong = [str(error)]
            ordeal.tally.failures += [f"{cell}: {error}"]
        verdict = "well" if not wrong else "; ".join(wrong)
        console.print(f"{number:4d}  {cell}: {verdict} ({time.monotonic() - began_s:.1f} s)")


def _left_behind(service: RunningService) -> list[str]:
    """Stop the service; what it left."""
    traces = Traces.of(service)
    found = len(traces.paths())
    service.stop()
    wrong = [f"{path} was left behind" for path in traces.paths()]
    wrong += [f"process {process.pid} was left behind" for process in traces.processes()]
    if service.process.returncode != 0:
        wrong.append(f"the supervisor ended with exit code {service.process.returncode}")
    if found != TRACES:
        wrong.append(f"{found} files in shared memory before the end, {TRACES} belong there")
    return wrong


def _report(tally: Tally) -> None:
    console.print()
    for name, count in sorted(tally.cells.items()):
        console.print(f"{count:5d}  {name}")
    answers = ", ".join(f"{count} {outcome}" for outcome, count in tally.answers.most_common())
    console.print(f"{tally.answers.total()} streams: {answers or 'none'}")
    for victim, seconds in sorted(tally.slowest_back_s.items()):
        console.print(f"slowest recovery after one SIGKILL of {victim}: {seconds:.1f} s")
    for failure in tally.failures:
        console.print(f"WRONG  {failure}")
    verdict = "nothing was wrong" if not tally.failures else f"{len(tally.failures)} things wrong"
    console.print(f"{tally.cells.total()} faults: {verdict}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="scripts/faults")
