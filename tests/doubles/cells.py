"""The matrix of simulated cells in which `auto` keeps its promises.

`python tests/doubles/cells.py` measures the sample of the tests;
`python tests/doubles/cells.py 500` measures so many random cells of the whole product, of 32,256.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from itertools import combinations
from math import ceil
from typing import Any, NamedTuple

from machines import MACHINES, written_ms
from simulated_machine import Load, SimulatedMachine

KNOWN = 256
"""Tokens that a server has written, beside the first texts, when its ways are compared."""
FIRST, COMPARED = 96, 128
"""Tokens of the first texts of each stream, and of those compared, at least: a trial may lose some
passes."""
PAUSE_MS = 20.0


@dataclass(frozen=True)
class Cell:
    """What a server meets.

    machine      of `MACHINES`
    agreement    of the draft with the target
    repeats      share of a text that goes on as it did before
    tokens       of a text
    streams      texts at once
    temperature  at which texts are sampled
    draft        works; dies, slows down (20 ms a pass) or begins to work behind the first texts
    load         by which factors load was wrong, by rows
    """

    machine: str
    agreement: float
    repeats: float
    tokens: int
    streams: int
    temperature: float
    draft: str
    load: tuple[tuple[int, float], ...]


VALUES: dict[str, Sequence[Any]] = {
    "machine": tuple(MACHINES),
    "agreement": (0.0, 0.3, 0.6, 0.95),
    "repeats": (0.0, 0.9),
    "tokens": (128, 32, 8),
    "streams": (1, 4, 16),
    "temperature": (0.0, 0.8),
    "draft": ("works", "dies", "slows", "returns"),
    "load": (
        ((1, 1.0),),
        ((1, 0.5),),
        ((1, 3.0),),
        ((1, 0.5), (2, 1.0)),
        ((1, 3.0), (2, 1.0)),
        ((1, 1.0), (2, 0.5)),
        ((1, 1.0), (2, 6.0)),
    ),
}


class Shares(NamedTuple):
    """Speed of `auto` by that of decoding alone in the first texts and in later ones, and by that
    of the best fixed way in the later ones."""

    first: float
    later: float
    best: float


def random_cell(chance: random.Random) -> Cell:
    return Cell(*(chance.choice(VALUES[field.name]) for field in fields(Cell)))


def sample() -> list[Cell]:
    """Cells of one stream and of four in which each pair of values of two fields occurs, but for a
    machine with what load believed of it."""
    chance = random.Random(1)
    missing = {
        (one, two, first, second)
        for (one, of_one), (two, of_two) in combinations(enumerate(VALUES.values()), 2)
        for first in of_one
        for second in of_two
        if 16 not in (first, second)
    }
    found: list[Cell] = []
    while missing:
        tried = (cell for cell in (random_cell(chance) for _ in range(300)) if cell.streams < 16)
        found.append(max(tried, key=lambda cell: len(missing & set(_pairs(cell)))))
        missing -= set(_pairs(found[-1]))
    return _thinned(found)


def _thinned(cells: list[Cell]) -> list[Cell]:
    """Those that are needed for the other pairs."""
    load = len(VALUES) - 1
    missing = {pair for cell in cells for pair in _pairs(cell) if pair[:2] != (0, load)}
    found: list[Cell] = []
    while missing:
        found.append(max(cells, key=lambda cell: len(missing & set(_pairs(cell)))))
        missing -= set(_pairs(found[-1]))
    return found


def _pairs(cell: Cell) -> Iterator[tuple[int, int, Any, Any]]:
    for (one, first), (two, second) in combinations(enumerate(astuple(cell)), 2):
        yield one, two, first, second


def measured(cell: Cell) -> Shares:
    """A server writes first texts, then others until it knows the cell, then those compared."""
    first = range(ceil(FIRST / cell.tokens))
    known = range(first.stop, first.stop + ceil(KNOWN / cell.tokens / cell.streams))
    later = range(known.stop, known.stop + ceil(COMPARED / cell.tokens))
    with _server(cell) as server:
        first_ms = _written_ms(server, cell, first)
        server.draft_lives = cell.draft != "dies"
        server.draft_pauses_ms = PAUSE_MS if cell.draft == "slows" else 0.0
        _written_ms(server, cell, known)
        later_ms = _written_ms(server, cell, later)
    text_ms = plain_ms(cell.machine, cell.tokens, cell.streams)
    best_ms = min(text_ms * len(later), *(_fixed_ms(cell, later)))
    return Shares(
        text_ms * len(first) / first_ms, text_ms * len(later) / later_ms, best_ms / later_ms
    )


def _server(cell: Cell, **speculation: Any) -> SimulatedMachine:
    server = SimulatedMachine(
        MACHINES[cell.machine],
        agreement=cell.agreement,
        repeats=cell.repeats,
        slots=cell.streams,
        load=Load(dict(cell.load)),
        **speculation,
    )
    server.draft_pauses_ms = PAUSE_MS if cell.draft == "returns" else 0.0
    return server


def _fixed_ms(cell: Cell, texts: range) -> Iterator[float]:
    """Of each fixed way, on a server that load was right about, behind a text by which it learns
    the rows that pay."""
    right = replace(cell, draft="works", load=((1, 1.0),))
    ways = {"ngrams": ("auto", {"drafter": "ngram"})}
    if cell.draft in ("works", "returns"):
        ways |= {"beside": ("card", {})}
        if cell.streams == 1:
            ways |= {"turns": ("draft_then_verify", {})}
    for decoding, changes in ways.values():
        with _server(right, **changes) as server:
            _written_ms(server, right, range(texts.start - 1, texts.start), decoding)
            yield _written_ms(server, right, texts, decoding)


def _written_ms(
    server: SimulatedMachine, cell: Cell, texts: range, decoding: str = "auto"
) -> float:
    return written_ms(
        server,
        texts,
        cell.tokens,
        decoding=decoding,
        streams=cell.streams,
        temperature=cell.temperature,
    )


@cache
def plain_ms(machine: str, tokens: int, streams: int) -> float:
    """Of decoding alone, of texts of so many tokens."""
    with SimulatedMachine(MACHINES[machine], agreement=0.0, slots=streams, noise=0.0) as server:
        return written_ms(server, [0], tokens, decoding="autoregressive", streams=streams)


def main() -> None:
    if len(sys.argv) > 1:
        chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
        cells = [random_cell(chance) for _ in range(int(sys.argv[1]))]
    else:
        cells = sample()
    for cell in cells:
        shares = measured(cell)
        print(*(f"{share:.3f}" for share in shares), *astuple(cell), flush=True)


if __name__ == "__main__":
    main()
