"""The exponent of the draft's probabilities by which candidates are ranked.

The target takes the best of its scores, not a draw from them, so the draft's likeliest token is
right more often than its softmax says, most of all where nothing is drawn. A node's score is the
log-probability of its path with every probability raised to this exponent: with it a tree goes
deeper where it should (benchmarks/NOTES.md). A score divided by the exponent comes true as a
chance.
"""

from __future__ import annotations

_GREEDY = 3.0
_SAMPLED = 2.0


def score_exponent(*, greedy: bool) -> float:
    """The exponent for a text that is decoded greedily, or sampled."""
    return _GREEDY if greedy else _SAMPLED
