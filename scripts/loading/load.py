"""Streams at several levels of concurrency, measured by perf_analyzer against a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loading.folder import results_folder
from loading.perf_analyzer import Measurement, NothingMeasuredError, PerfAnalyzerError, measure

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
LACKING = 2

console = Console()


def load(
    url: Annotated[
        str, typer.Option(help="gRPC address of the running server.")
    ] = "localhost:8001",
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Streams at once; repeat.", show_default="1 2 4 8 16 32 64"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each level is measured.")] = 10.0,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "def fibonacci(n):",
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each request.")] = 64,
    decoding: Annotated[
        str | None, typer.Option(help="How to decode.", show_default="the server's default")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the raw CSV files.", show_default="build/load/TIME"),
    ] = None,
) -> None:
    """Measure a server that is running (`scripts/run --serve`) and keep the raw CSV files.

    Exit codes: 0 measured; 2 nothing was: no server, no perf_analyzer, or too few --seconds.
    """
    folder = results_folder(output, "load")
    body = {"text_input": prompt, "max_tokens": max_tokens, "stream": True, "end_id": -1}
    if decoding is not None:
        body["decoding"] = decoding
    table = _table(max_tokens)
    try:
        for streams in concurrency or CONCURRENCIES:
            try:
                with console.status(f"{streams} streams"):
                    _add(table, measure(url, body, streams, seconds, folder), max_tokens)
            except NothingMeasuredError as error:
                console.print(f"{streams} streams: {error}", highlight=False, markup=False)
    except PerfAnalyzerError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(LACKING) from None
    finally:
        if table.rows:
            console.print(table)
    console.print(f"raw figures: {folder}", highlight=False)
    if not table.rows:
        raise typer.Exit(LACKING)


def _table(max_tokens: int) -> Table:
    times = [f"{what} {share}" for what in ("first", "gap", "whole") for share in ("p50", "p99")]
    return Table(
        *("streams", "req/s", "tok/s", "deltas"),
        *times,
        title=f"{max_tokens} tokens a request; ms to the first text, between two, in all",
        padding=(0, 0),
    )


def _add(table: Table, found: Measurement, max_tokens: int) -> None:
    milliseconds = (
        found.first_p50,
        found.first_p99,
        found.gap_p50,
        found.gap_p99,
        found.whole_p50,
        found.whole_p99,
    )
    table.add_row(
        str(found.concurrency),
        f"{found.requests:.2f}",
        f"{found.requests * max_tokens:.0f}",
        f"{found.responses:.1f}",
        *(f"{value:.0f}" for value in milliseconds),
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(load)
    app(prog_name="scripts/load")
