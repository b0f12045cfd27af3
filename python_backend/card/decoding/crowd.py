"""Whether many sessions are better off without their draft, found out by trying both.

What a pass costs beside a draft that works for many cannot be reckoned from passes that had the
machine to themselves. So the target compares the tokens per second of passes beside the draft with
those of passes without it, stays with the better way, and tries the other one ever more rarely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FEWEST = 2
"""A session alone is judged by its own acceptance (`card.decoding.rest`)."""

_TRIED_PASSES = 24
"""Passes that are measured of either way, one behind the other, before they are compared."""

_SETTLING_PASSES = {True: 4, False: 24}
"""Passes that count for nothing after the draft began to rest, or to work: it first reads what it
missed."""

_FIRST_STAY, _LONGEST_STAY = 512, 8192
"""Passes until the other way is tried again; twice as many each time that it was worse."""

_WORTHWHILE = 1.04
"""Speed-up below which the draft rests: beside it prompts take longer too."""

_PAYS_TOKENS = 3.0
"""Tokens of a pass for each session with which the draft pays without a trial."""

_SHRINKING = 0.95
"""Share of the former number of sessions in the smoothed one, while it falls."""


@dataclass(slots=True)
class _Size:
    """What is known of about so many sessions.

    rests      whether the draft rests in the passes that are counted now
    left       passes until this way is compared with the other; the last of them are measured
    next_stay  passes of the next stay
    before     tokens per second of the way that was measured before a trial; None: no trial
    """

    rests: bool = False
    left: int = _TRIED_PASSES
    next_stay: int = _FIRST_STAY
    before: float | None = None
    tokens: int = 0
    seconds: float = 0.0

    def count(self, sessions: int, tokens: int, seconds: float) -> None:
        """A pass took so long and gave so much."""
        if self.left <= _TRIED_PASSES:
            self.tokens += tokens
            self.seconds += seconds
        self.left -= 1
        if self.left:
            return
        measured = self.tokens / self.seconds
        if self.before is not None:
            self._judge(self.before, measured)
        elif self.rests or self.tokens < _PAYS_TOKENS * _TRIED_PASSES * sessions:
            self.before, self.rests, self.left = measured, not self.rests, _TRIED_PASSES
        else:
            self.left = self.next_stay
        self.tokens, self.seconds = 0, 0.0

    def _judge(self, before: float, tried: float) -> None:
        """The other way was tried: stay with it, or go back."""
        drafting, resting = (before, tried) if self.rests else (tried, before)
        rests = drafting < _WORTHWHILE * resting
        if rests == self.rests:
            self.next_stay = _FIRST_STAY
        else:
            self.next_stay = min(2 * self.next_stay, _LONGEST_STAY)
        self.before, self.rests, self.left = None, rests, self.next_stay


class Crowd:
    """Passes of several sessions, told apart by about how many there are."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._smoothed = 0.0
        self._rests = False
        self._settling = 0

    def rests(self, sessions: int) -> bool:
        """Whether the draft rests for the next pass, which so many sessions share."""
        self._smoothed = max(sessions, _SHRINKING * self._smoothed + (1 - _SHRINKING) * sessions)
        rests = sessions >= FEWEST and self._size().rests
        if rests is not self._rests:
            self._rests, self._settling = rests, _SETTLING_PASSES[rests]
        return rests

    def observe(self, sessions: int, tokens: int, seconds: float) -> None:
        """What the pass gave that was asked about last, and how long it took, with all that lay
        between it and the one before; to be told of passes that read no prompt."""
        if self._settling:
            self._settling -= 1
        elif sessions >= FEWEST:
            self._size().count(sessions, tokens, seconds)

    def _size(self) -> _Size:
        """Of sizes that differ by less than a factor of two: 2, 3 to 4, 5 to 8, 9 to 16, ..."""
        about = (math.ceil(self._smoothed) - 1).bit_length()
        if about not in self._sizes:
            self._sizes[about] = _Size()
            self._settling = _SETTLING_PASSES[False]
        return self._sizes[about]
