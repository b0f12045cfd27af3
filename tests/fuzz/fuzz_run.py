"""What `scripts/fuzz` does: hostile inputs at every boundary until the time is over, and counts."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from fuzz_boundaries import BOUNDARIES
from fuzz_wire import EVERY_MODEL, WireFuzz
from rich.console import Console
from running_doors import running_guard
from running_service import running_service

EXAMPLES = 200
"""Inputs of one boundary before the next one has its turn."""
SHORT_TEXTS = {"limits": {"max_tokens": 16, "default_max_tokens": 16}}
"""A request that happens to be sound is answered quickly."""

console = Console(highlight=False, soft_wrap=True)


def main(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long to go on.")] = 5.0,
    seed: Annotated[int | None, typer.Option(help="Repeats a run's inputs.")] = None,
) -> None:
    """Try hostile inputs on a real server and at every other boundary.

    Exit codes: 0 all were answered or refused; 1 one was not, and is shown, as small as it gets; 2
    this machine lacks something, said in one line.
    """
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    console.print(f"seed {seed}, {minutes:g} minutes")
    end_s = time.monotonic() + 60 * minutes
    tried: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="card-fuzz-"))
    with (
        running_service(folder, SHORT_TEXTS) as service,
        running_guard(service, *EVERY_MODEL) as guard,
    ):
        wire = WireFuzz(service, guard)
        ways = {
            "tensors over gRPC": wire.over_grpc,
            "tensors through the guard": wire.through_guard,
            "JSON over HTTP": wire.over_http,
        }
        try:
            _take_turns({**ways, **BOUNDARIES}, tried, seed, end_s)
        except Exception:
            console.print_exception(show_locals=False)
            console.print(f"failed with seed {seed}; the service's log: {service.log}")
            sys.exit(1)
        finally:
            wire.close()
            _report(tried, wire)
    shutil.rmtree(folder)


def _take_turns(
    boundaries: dict[str, Callable[[int, int], int]], tried: Counter[str], seed: int, end_s: float
) -> None:
    turn = 0
    while turn == 0 or time.monotonic() < end_s:
        for name, fuzz in boundaries.items():
            tried[name] += fuzz(seed + turn, EXAMPLES)
        turn += 1


def _report(tried: Counter[str], wire: WireFuzz) -> None:
    for name, count in tried.items():
        console.print(f"{count:8d}  {name}")
    console.print(
        f"{tried.total():8d}  inputs tried; of those to the server {wire.answered} were answered "
        f"and {wire.refused} refused"
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="scripts/fuzz")
