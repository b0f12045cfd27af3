"""What the target asks for candidates, in order; each adds to what those before it found."""

from __future__ import annotations

from card.speculation.sources.interface import QueriedSession, Source
from card.speculation.sources.ngram import NgramSource
from card.speculation.sources.tree import SHAPES, TreeSource, chain_ahead

__all__ = ["SHAPES", "QueriedSession", "Source", "chain_ahead", "make_sources"]


def make_sources(query: str, branches: int) -> dict[str, Source]:
    """The registry: sources by name, in the order in which they are asked.

    query     key of `SHAPES`: what is taken from the draft's tree
    branches  most paths of a subtree
    """
    return {"tree": TreeSource(query, branches), "ngram": NgramSource()}
