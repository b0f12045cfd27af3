"""Pacings, by the value of `decoding` in settings and requests."""

from __future__ import annotations

from card.speculation.pacing.autoregressive import Autoregressive
from card.speculation.pacing.branch import Branch
from card.speculation.pacing.card import Auto, Card
from card.speculation.pacing.draft_then_verify import DraftThenVerify
from card.speculation.pacing.interface import Pacing, Progress
from card.speculation.pacing.pearl import Pearl
from card.speculation.pacing.ssd import Ssd

__all__ = ["PACINGS", "PLAIN", "Pacing", "Progress", "counted_as", "title_of"]

PACINGS: dict[str, Pacing] = {
    "auto": Auto(),
    "card": Card(),
    "pearl": Pearl(),
    "draft_then_verify": DraftThenVerify(),
    "branch": Branch(),
    "ssd": Ssd(),
    "autoregressive": Autoregressive(),
}

PLAIN = next(name for name, pacing in PACINGS.items() if not pacing.queries)
"""The pacing of requests that must be decoded without candidates."""


def counted_as(pacing: str) -> str:
    """Label of the pacing in metrics."""
    return PACINGS[pacing].counted_as or pacing


def title_of(pacing: str) -> str:
    """Name of the pacing in tables."""
    return PACINGS[pacing].title or pacing.replace("_", "-")
