"""The target's side of CARD: query the cache, verify in one pass, correct, commit."""

from card.decoding.loop import TargetLoop, TargetTimes
from card.decoding.rows import Acceptance, RowPlan, ideal_tokens
from card.decoding.walk import Verdict, verify

__all__ = [
    "Acceptance",
    "RowPlan",
    "TargetLoop",
    "TargetTimes",
    "Verdict",
    "ideal_tokens",
    "verify",
]
