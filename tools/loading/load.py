"""Streams at several levels of concurrency, measured by perf_analyzer against a running server; or
what a server of its own holds under long texts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.chats import read_chats
from bench.prompts import PromptsError
from card.settings import REPOSITORY_ROOT, SettingsError, load_settings
from card_client import CardError
from card_client.chat_template import ChatTemplateError
from loading.memory import long_texts, most_held, shares, shares_table
from loading.perf_analyzer import Measurement, NothingMeasuredError, PerfAnalyzerError, measure
from loading.service import Service, results_folder, running_service
from loading.supervised import ProcessEndedError
from refusal import REFUSED, refuse

CONCURRENCIES = (1, 4, 8)
PROMPTS = REPOSITORY_ROOT / "benchmarks" / "prompts" / "suite.jsonl"

console = Console()


def load(
    url: Annotated[
        str, typer.Option(help="gRPC address of the running server.")
    ] = "localhost:8001",
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Streams at once; repeat.", show_default="1 4 8"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each level is measured.")] = 10.0,
    prompt: Annotated[
        str | None, typer.Option(help="One text to continue.", show_default="chats")
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(help="The server's settings, for its chat template.", show_default="built in"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each request.")] = 128,
    decoding: Annotated[
        str | None, typer.Option(help="How to decode.", show_default="the server's default")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the raw CSV files.", show_default="build/load/TIME"),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="What does each process of a server of its own hold, every "
            "slot with a prompt of 1,000 tokens and 1,000 new ones?",
        ),
    ] = False,
) -> None:
    """Measure a server that is running (`scripts/run --serve`) and keep the raw CSV files.

    Exit codes: 0 measured; 2 nothing was: no server, no perf_analyzer, or too few --seconds.
    """
    folder = results_folder(output, "load")
    try:
        if memory:
            with running_service(
                load_settings(settings), settings, folder / "service.log"
            ) as service:
                console.print(_held(service), highlight=False)
            return
        texts = _chats(settings) if prompt is None else [prompt]
    except (SettingsError, ChatTemplateError, PromptsError, CardError) as error:
        refuse(error)
    except ProcessEndedError as error:
        refuse(f"{error}; see {folder / 'service.log'}")
    request: dict[str, Any] = {"max_tokens": max_tokens, "stream": True, "end_id": -1}
    if decoding is not None:
        request["decoding"] = decoding
    bodies = [{"text_input": text, **request} for text in texts]
    table = _table(max_tokens)
    try:
        for streams in concurrency or CONCURRENCIES:
            try:
                with console.status(f"{streams} streams"):
                    _add(table, measure(url, bodies, streams, seconds, folder), max_tokens)
            except NothingMeasuredError as error:
                console.print(f"{streams} streams: {error}", highlight=False, markup=False)
    except PerfAnalyzerError as error:
        refuse(error)
    finally:
        if table.rows:
            console.print(table)
    console.print(f"raw figures: {folder}", highlight=False)
    if not table.rows:
        raise typer.Exit(REFUSED)


def _held(service: Service) -> Table:
    texts = long_texts(service.settings)
    ready = shares(service)
    most = asyncio.run(most_held(service, texts))
    return shares_table({"ready": ready, f"{len(texts)} streams": most})


def _chats(settings_file: Path | None) -> list[str]:
    """The chats of the benchmark's suite, as the target's template writes them."""
    _, found = read_chats(load_settings(settings_file).target.path, PROMPTS)
    return [prompt.text for prompt in found if prompt.is_chat]


def _table(max_tokens: int) -> Table:
    times = [f"{what} {share}" for what in ("first", "gap", "whole") for share in ("p50", "p99")]
    title = f"{max_tokens} tokens a request; ms to the first text, between two, in all"
    return Table("streams", "req/s", "tok/s", "deltas", *times, title=title, padding=(0, 0))


def _add(table: Table, found: Measurement, max_tokens: int) -> None:
    table.add_row(
        str(found.concurrency),
        f"{found.requests:.2f}",
        f"{found.requests * max_tokens:.0f}",
        f"{found.responses:.1f}",
        *(f"{value:.0f}" for value in (*found.first, *found.gap, *found.whole)),
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(load)
    app(prog_name="scripts/load")
