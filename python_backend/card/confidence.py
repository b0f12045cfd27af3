"""How far the draft is believed beyond its own softmax, where candidates are ranked.

The target takes the best of its scores, not a draw from them, so the draft's likeliest token is
right more often than its softmax says, most of all where nothing is drawn. A node's score is the
log-probability of its path times this confidence: with it a tree goes deeper where it should
(benchmarks/NOTES.md). Divided by it again, a score comes true as a chance.
"""

from __future__ import annotations

_GREEDY = 3.0
_SAMPLED = 2.0


def confidence_in(*, greedy: bool) -> float:
    """The power of the draft's probabilities that candidates of such a text are ranked by."""
    return _GREEDY if greedy else _SAMPLED
