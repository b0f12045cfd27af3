"""`bench shapes`: random models of Llama 3's shapes, ours beside llama.cpp and OpenVINO GenAI."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import terminal
from bench.conditions import where_and_when
from bench.measurement import Task
from bench.peers import PEERS, Mode, Peer, PeerError, Worker, install, start
from bench.prompts import Prompt
from bench.shape_models import HEAD_KINDS, SHAPES, write_model
from card.engines.processor import resolve_dtype
from card.settings import load_settings

ShapeName = Enum("ShapeName", {name: name for name in SHAPES}, type=str)  # type: ignore[misc]

_OURS = Peer("card", [], [Mode("card", "generate")])
_SHORT, _LONG = 12, 256
"""Tokens of the prompt that a text continues, and of the prompt for the speed of reading."""
_CONTEXT = 1024
_ROWS = (1, 4, 8)


def shapes(
    shape: Annotated[ShapeName, typer.Option(help="Llama 3's shape.")],
    types: Annotated[
        str, typer.Option("--type", help="Types of GGUF files, separated by commas.")
    ] = "q4_0,q4_k_m",
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="Ids of the vocabulary.", show_default="49152")
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of a text.")] = 24,
    json_file: Annotated[Path | None, typer.Option("--json", callback=terminal.writable)] = None,
    peers: Annotated[bool, typer.Option(help="Measure peers too.")] = True,
    peer: Annotated[
        list[str] | None, typer.Option(help="A peer to measure; may be repeated. None: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, behind one that warms up.")] = 3,
    models: Annotated[
        Path | None, typer.Option(help="Folder that keeps the models.", show_default="none")
    ] = None,
) -> None:
    """Measure decoding, prompts, memory and start of large models, beside peers, in turns."""
    recipes = [name.strip().upper() for name in types.split(",")]
    allowed = ["Q4_K_M"] if shape.value == "8b" else list(HEAD_KINDS)
    if wrong := [name for name in recipes if name not in allowed]:
        raise typer.BadParameter(
            f"{', '.join(wrong)}; shape {shape.value} has {', '.join(allowed)}", param_hint="--type"
        )
    if unknown := sorted({*(peer or ())} - {*PEERS}):
        raise typer.BadParameter(
            f"{', '.join(unknown)}; the peers are {', '.join(PEERS)}", param_hint="--peer"
        )
    systems = [_OURS, *(PEERS[name] for name in (peer or PEERS) if peers)]
    load_before, console, found = round(os.getloadavg()[0], 2), Console(), []
    with terminal.said_in_one_line():
        for recipe in recipes:
            with TemporaryDirectory(prefix="card-bench-shape-", dir="/var/tmp") as home:
                file = (models or Path(home)) / f"{shape.value}-{vocabulary or 0}-{recipe}.gguf"
                _make(file, shape.value, recipe, vocabulary)
                for row in _measured(file, tokens, systems, rounds):
                    found.append({"shape": shape.value, "type": recipe, **row})
                    console.print_json(data=found[-1])
    if json_file is not None:
        content = {**where_and_when(load_before), "rows": found}
        json_file.write_text(json.dumps(content, indent=1) + "\n")


def _make(file: Path, shape: str, recipe: str, vocabulary: int | None) -> None:
    """Write the model unless the file exists. A file that was cut off keeps another name."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    write_model(part, SHAPES[shape], recipe, load_settings().target.path, vocabulary)
    part.rename(file)


def _measured(
    file: Path, tokens: int, peers: Sequence[Peer], rounds: int
) -> Iterator[dict[str, Any]]:
    """A row of figures for each system that can run the file; the others say why not."""
    dtype = resolve_dtype("auto")  # a peer's own choice; ours chooses by the file
    running: dict[str, Worker] = {}
    rows: dict[str, dict[str, Any]] = {}
    try:
        for peer in peers:
            try:
                with _ready_in(rows.setdefault(peer.name, {"system": peer.name})):
                    running[peer.name] = start(peer, install(peer), (file, file), dtype, _CONTEXT)
            except PeerError as error:
                rows[peer.name]["skipped"] = str(error)
        measured: dict[str, dict[str, list[float]]] = {name: {} for name in running}
        for round_ in range(rounds + 1):
            for name, worker in running.items():
                for figure, value in _texts(name, worker, tokens):
                    if round_:  # the first round warms up
                        measured[name].setdefault(figure, []).append(value)
        for name, worker in running.items():
            rows[name] |= {
                figure: round(median(all_), 3) for figure, all_ in measured[name].items()
            }
            rows[name]["memory_mib"] = worker.memory_mib
            rows[name]["file_mib"] = file.stat().st_size >> 20
            if name == _OURS.name:
                rows[name]["pass_ms"] = {n: _pass_ms(worker, n) for n in _ROWS}
    finally:
        for worker in running.values():
            worker.stop()
    yield from rows.values()


@contextmanager
def _ready_in(row: dict[str, Any]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    row["ready_s"] = round(time.perf_counter() - began, 1)


def _texts(name: str, worker: Worker, tokens: int) -> Iterator[tuple[str, float]]:
    """Figures of one round: tokens/s behind the first token, and of reading a prompt."""
    for mode, figure in (("generate", "tokens_per_s"), ("ngram", "tokens_per_s_ngrams")):
        if mode == "generate" or name == _OURS.name:
            answer = _answer(worker, mode, _SHORT, tokens)
            yield figure, (tokens - 1) / (answer["seconds"] - answer["first_token_s"])
            if mode == "generate":
                yield "first_token_s", answer["first_token_s"]
    answer = _answer(worker, "generate", _LONG, 2)
    yield "prompt_tokens_per_s", _LONG / answer["first_token_s"]


def _pass_ms(worker: Worker, rows: int) -> float:
    return round(1e3 * float(_answer(worker, "rows", rows, 1)["seconds"]), 2)


def _answer(worker: Worker, mode: str, prompt: int, tokens: int) -> dict[str, Any]:
    """The greedy answer to a prompt of so many tokens, with so many new tokens."""
    ids = tuple(100 + 7 * at for at in range(prompt))
    return worker.ask(Task(Prompt("shape", "", ids), 0.0, 0, tokens), Mode("shape", mode))
