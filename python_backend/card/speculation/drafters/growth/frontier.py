"""The unexpanded nodes of a tree, from which a growth rule takes what is expanded next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

UNEXPANDED = -1
"""KV entry of a node whose token was never forwarded, so its children are unknown."""

OpenNode = tuple[int, float, int]
"""Number, score and depth of a node."""


class Frontier(Protocol):
    """Unexpanded nodes of a tree, best first by some rule."""

    def push(self, node: int, score: float, depth: int) -> None: ...

    def refill(self, nodes: Iterable[OpenNode]) -> None:
        """Hold these and nothing else."""

    def take(self, width: int, depth: int, entry: Sequence[int]) -> list[int]:
        """At most `width` nodes to expand now. One too deep for its children to end above `depth`
        is forgotten until the next refill.

        entry  KV entry of every node; nodes that were expanded meanwhile are passed over
        """
