"""What the target asks for candidates, in order; each adds to what those before it found."""

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
"""In the order in which they are asked."""

WITHOUT_DRAFT = tuple(name for name, source in SOURCES.items() if not source.needs_draft)
"""Those that need no draft's process: values of the setting `speculation.proposals`, and of
`speculation.drafter`, which then says that there is no draft."""


def make_sources(query: str, branches: int, proposals: str = "ngram") -> dict[str, Source]:
    """Sources by name, in the order in which they are asked: all that need a draft, and one of the
    target's own.

    query     key of `SHAPES`: what is taken from the draft's tree
    branches  most paths of a query
    proposals one of `WITHOUT_DRAFT`
    """
    return {
        name: source(query, branches)
        for name, source in SOURCES.items()
        if source.needs_draft or name == proposals
    }
