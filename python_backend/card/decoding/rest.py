"""Whether a session's draft is worth its share of the machine."""

from __future__ import annotations

_WORTHWHILE = 1.15
"""Speed-up below which drafting costs more, in memory traffic and cores, than it gains."""

_FIRST_REST = 32
_LONGEST_REST = 1024

_PROVEN = 48
"""Passes in a row for which the draft must have paid before its next rest is a short one again:
every trial begins with the belief that it pays, and a late draft is not judged for 32 of them."""

_FORESEEN_REST = 128
"""Of a session that begins with one, because those before it gained next to nothing."""

_FORFEIT = 0.01
"""Tokens that a session may lose by its draft, as reckoned, for each one of the rest that follows.
Reckoned is from passes that nobody disturbed; beside a draft at work it came to two or three times
as much."""


def pays(gain: float) -> bool:
    """Whether a speed-up is worth drafting for."""
    return gain >= _WORTHWHILE


def costs(gain: float) -> bool:
    """Whether drafting is slower than decoding alone."""
    return gain < 1.0


class DraftRest:
    """Sends the draft to rest while speculation does not pay, and tries again ever more rarely:
    never before what was lost by it is a small share of what came since.

    until  length of prompt and output below which the draft rests
    """

    def __init__(self) -> None:
        self.until = 0
        self._next = _FIRST_REST
        self._paid = 0

    def resting(self, length: int) -> bool:
        """Whether the draft rests at this length of prompt and output."""
        return length < self.until

    def consider(self, length: int, gain: float, loss: float) -> bool:
        """Judge by the speed-up of late. Whether a rest begins.

        loss  tokens that the session lost by its draft so far, against decoding alone
        """
        if pays(gain):
            self._paid += 1
            if self._paid >= _PROVEN:
                self._next = _FIRST_REST
            return False
        self._begin(length, max(self._next, round(loss / _FORFEIT)))
        return True

    def foresee(self, length: int, gain: float) -> None:
        """Begin with a rest, before this session has tried its draft; with a long one where those
        before it lost by theirs."""
        self._begin(length, _LONGEST_REST if costs(gain) else _FORESEEN_REST)

    def _begin(self, length: int, tokens: int) -> None:
        rest = min(tokens, _LONGEST_REST)
        self.until, self._paid = length + rest, 0
        self._next = min(2 * rest, _LONGEST_REST)
