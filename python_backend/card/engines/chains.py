"""A chain of passes; each reads the likeliest id of the pass before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from card.engines.interface import Logits, Ranking, SequenceTokens


class Forwards(Protocol):
    """The part of an engine that a chain needs."""

    def forward(self, batch: Sequence[SequenceTokens]) -> list[Logits]: ...


def forward_one_by_one(
    engine: Forwards, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
) -> list[Logits]:
    """`Engine.forward_chain` for an engine that reads each pass before the next one begins."""
    found = engine.forward([rows])
    for ranking in rankings:
        token = int(found[-1].best()[0][-1, 0])
        found += engine.forward([SequenceTokens(rows.session, [token], [entry], ranking=ranking)])
        entry += 1
    return found
