"""Whether many sessions are better off without their draft, found out by trying both.

What a pass costs beside a draft that works for many cannot be reckoned from passes that had the
machine to themselves. So the target compares the tokens per second of passes beside the draft with
those of passes without it, stays with the better way, and tries the other one ever more rarely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FEWEST = 2
"""A session alone is judged by its own acceptance (`card.decoding.rest`)."""

_TRIED_PASSES = 24
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
class _Speed:
    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Size:
    """What is known of about so many sessions.

    rests  whether the draft rests in the passes that are counted now
    stay   passes after which the other way is tried
    """

    rests: bool = False
    stay: int = _TRIED_PASSES
    next_stay: int = _FIRST_STAY
    is_trial: bool = False
    now: _Speed = field(default_factory=_Speed)
    before: float = 0.0

    def count(self, sessions: int, tokens: int, seconds: float) -> None:
        """A pass took so long and gave so much."""
        now = self.now
        now.tokens += tokens
        now.seconds += seconds
        now.passes += 1
        if now.passes < (_TRIED_PASSES if self.is_trial else self.stay):
            return
        if self.is_trial:
            self._judge()
        elif self.rests or now.tokens < _PAYS_TOKENS * now.passes * sessions:
            self.is_trial, self.before, self.rests = True, now.tokens_per_s, not self.rests
        self.now = _Speed()

    def _judge(self) -> None:
        """The other way was tried: stay with it, or go back."""
        tried = self.now.tokens_per_s
        drafting, resting = (self.before, tried) if self.rests else (tried, self.before)
        rests = drafting < _WORTHWHILE * resting
        self.next_stay = (
            _FIRST_STAY if rests == self.rests else min(2 * self.next_stay, _LONGEST_STAY)
        )
        self.stay, self.rests, self.is_trial = self.next_stay, rests, False


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
