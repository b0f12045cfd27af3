"""A draft under an engine of another project: it continues texts by requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from card.cache import NO_SALT, SlotRequest
from card.engines.interface import EngineError
from card.engines.vocabulary import shared_vocabulary

Told = tuple[int, dict[int, float]]
"""A token of a request, and log-probabilities by id."""


@dataclass(slots=True, eq=False)
class Chain:
    """One request, which continues a text greedily.

    salt     only requests with the same one share KV; None: all without one
    request  the engine's own handle, once the request is made
    arrived  tokens that the draft's loop has not taken yet
    ended    the request ended: `arrived` gets no more
    """

    salt: str | None = None
    request: Any = None
    arrived: deque[Told] = field(default_factory=deque)
    ended: bool = False


class Chains(Protocol):
    """The requests of a draft. Methods raise what the engine raises: the process cannot continue
    then."""

    def begin(self, asked: Sequence[tuple[Chain, list[int], int]], alternatives: int) -> None:
        """Continue texts, each by so many tokens, with `alternatives` likeliest ids of each."""

    def end(self, chains: Sequence[Chain]) -> None:
        """Abort requests."""

    def advance(self) -> None:
        """Let requests go on; their tokens arrive now or later."""


def salt_of(request: SlotRequest, number: int) -> str | None:
    """The salt of a session's requests; `number` is the session's own."""
    if not request.reuses_kv:
        return f"session {number}"
    return None if request.salt == NO_SALT else request.salt.hex()


def check_vocabulary(draft: Path, target: Path, title: str) -> None:
    """Raises `EngineError` if the draft lacks some of the target's tokens."""
    shared = shared_vocabulary(draft, target)
    if not shared.is_whole:
        raise EngineError(
            f"{draft}: {shared.note}; {title} cannot leave some out: take a draft with the "
            "target's vocabulary, or draft.engine: torch"
        )
