"""Whether a session's draft is worth its share of the machine."""

from __future__ import annotations

_WORTHWHILE = 1.15
"""Speed-up below which drafting costs more, in memory traffic and cores, than it gains."""

_FIRST_REST = 32
_LONGEST_REST = 1024


class DraftRest:
    """Sends the draft to rest while speculation does not pay, and tries again ever more rarely.

    until  length of prompt and output below which the draft rests
    """

    def __init__(self) -> None:
        self.until = 0
        self._next = _FIRST_REST

    def resting(self, length: int) -> bool:
        """Whether the draft rests at this length of prompt and output."""
        return length < self.until

    def consider(self, length: int, gain: float) -> bool:
        """Judge by the speed-up that the acceptance of late promises. Whether a rest begins."""
        if gain >= _WORTHWHILE:
            self._next = _FIRST_REST
            return False
        self.until = length + self._next
        self._next = min(2 * self._next, _LONGEST_REST)
        return True
