"""The target's sources of candidates; each adds to the candidates of the sources before it."""

from __future__ import annotations

from card.speculation.sources.interface import QueriedSession, Source
from card.speculation.sources.ngram import NgramSource
from card.speculation.sources.phrases import PhraseSource
from card.speculation.sources.tree import SHAPES, TreeSource, chain_ahead

__all__ = [
    "SHAPES",
    "SOURCES",
    "WITHOUT_DRAFT",
    "QueriedSession",
    "Source",
    "chain_ahead",
    "make_sources",
]

SOURCES: dict[str, type[Source]] = {
    "tree": TreeSource,
    "ngram": NgramSource,
    "phrases": PhraseSource,
}
"""Sources by name, in the order of a query."""

WITHOUT_DRAFT = tuple(name for name, source in SOURCES.items() if not source.needs_draft)
"""Sources without a draft's process: values of the setting `speculation.proposals`, and of
`speculation.drafter` for a service without a draft."""


def make_sources(query: str, branches: int, proposals: str = "ngram") -> dict[str, Source]:
    """Sources by name, in the order of a query: all that need a draft, and one of the target's own.

    query     key of `SHAPES`, the shape of a query of the draft's tree
    branches  most paths of a query
    proposals one of `WITHOUT_DRAFT`
    """
    return {
        name: source(query, branches)
        for name, source in SOURCES.items()
        if source.needs_draft or name == proposals
    }
