"""The target's side of CARD: query the cache, verify in one pass, correct, commit."""

from card.decoding.loop import TargetLoop, TargetTimes
from card.decoding.rows import choose_rows, ideal_tokens
from card.decoding.walk import Verdict, verify

__all__ = ["TargetLoop", "TargetTimes", "Verdict", "choose_rows", "ideal_tokens", "verify"]
