"""Whether many sessions are better off without their draft, found out by trying both.

What a pass costs beside a draft that works for many cannot be reckoned from passes that had the
machine to themselves. So the target compares the tokens per second of passes beside the draft with
those of passes without it, stays with the better way, and tries the other one ever more rarely.
Where even passes that had the machine to themselves promise too little, it begins without it; and
where they promise too little of a draft that is always right, it hardly ever tries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from card.decoding.rest import pays
from card.decoding.rows import EXPECTED_AGREEMENT

FEWEST = 2
"""A session alone is judged by its own gain (`card.decoding.rest`), whatever else runs."""

_TRIED_PASSES = 24
"""Passes that are measured of either way, one behind the other, before they are compared."""

_SETTLING_PASSES = {True: 4, False: 24}
"""Passes at least that count for nothing after the draft began to rest, or to work."""

_LONGEST_SETTLING = 48
"""Until the draft has read what it missed, which shows in how many sessions find candidates."""

_SETTLED_SHARE = 1 / 3
"""Of the sessions find candidates: the draft has caught up."""

_FIRST_STAY, _LONGEST_STAY = 512, 8192
"""Passes until the other way is tried again; twice as many each time that it was worse."""

_WORTHWHILE = 1.04
"""Speed-up below which the draft rests: beside it prompts take longer too."""

_PAYS_TOKENS = 3.0
"""Tokens of a pass for each session with which the draft pays without a trial."""

_COMPARABLE = 1.2
"""Factor between the sessions of two ways beyond which their speeds say nothing of the draft."""

_SHRINKING = 0.95
"""Share of the former number of sessions in the smoothed one, while it falls."""


@dataclass(slots=True)
class _Window:
    """Passes measured one behind the other."""

    passes: int = 0
    sessions: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, sessions: int, tokens: int, seconds: float) -> None:
        self.passes += 1
        self.sessions += sessions
        self.tokens += tokens
        self.seconds += seconds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def is_comparable(self, other: _Window) -> bool:
        """Whether about as many sessions shared the passes of both."""
        fewer, more = sorted((self.sessions / self.passes, other.sessions / other.passes))
        return more <= _COMPARABLE * fewer


@dataclass(slots=True)
class _Size:
    """What is known of about so many sessions.

    rests      whether the draft rests in the passes that are counted now
    left       passes until this way is compared with the other; the last of them are measured
    next_stay  passes of the next stay
    before     the way that was measured before a trial; None: no trial
    """

    rests: bool = False
    left: int = _TRIED_PASSES
    next_stay: int = _FIRST_STAY
    before: _Window | None = None
    now: _Window = field(default_factory=_Window)

    def count(self, sessions: int, tokens: int, seconds: float) -> None:
        """A pass took so long and gave so much."""
        if self.left <= _TRIED_PASSES:
            self.now.add(sessions, tokens, seconds)
        self.left -= 1
        if self.left:
            return
        now, self.now = self.now, _Window()
        if self.before is not None:
            self._judge(self.before, now)
        elif self.rests or now.tokens < _PAYS_TOKENS * now.sessions:
            self.before, self.rests, self.left = now, not self.rests, _TRIED_PASSES
        else:
            self.left = self.next_stay

    def _judge(self, before: _Window, tried: _Window) -> None:
        """The other way was tried: stay with it, or go back."""
        if not tried.is_comparable(before):
            self.before, self.rests, self.left = None, not self.rests, _TRIED_PASSES
            return
        drafting, resting = (before, tried) if self.rests else (tried, before)
        rests = drafting.tokens_per_s < _WORTHWHILE * resting.tokens_per_s
        if rests == self.rests:
            self.next_stay = _FIRST_STAY
        else:
            self.next_stay = min(2 * self.next_stay, _LONGEST_STAY)
        self.before, self.rests, self.left = None, rests, self.next_stay


class Crowd:
    """Passes of several sessions, told apart by about how many there are.

    promised  speed-up by a draft of such an agreement of passes that so many sessions share, from
              what rows cost
    """

    def __init__(self, promised: Callable[[float, int], float]) -> None:
        self._promised = promised
        self._sizes: dict[int, _Size] = {}
        self._size: _Size | None = None
        self._smoothed = 0.0
        self._rests = False
        self._settled = False
        self._settling = 0

    def rests(self, sessions: int) -> bool:
        """Whether the draft rests for the next pass, which so many sessions share."""
        self._smoothed = max(sessions, _SHRINKING * self._smoothed + (1 - _SHRINKING) * sessions)
        self._size = self._size_of(round(self._smoothed))
        rests = self._size is not None and self._size.rests
        if rests is not self._rests:
            self._rests, self._settled, self._settling = rests, False, 0
        return rests

    def disperse(self) -> None:
        """Nobody is decoded any more; whoever comes next is counted afresh."""
        self._smoothed = 0.0
        self.rests(0)

    def observe(self, sessions: int, tokens: int, seconds: float, found: int) -> None:
        """What the pass gave that was asked about last, and how long it took, with all that lay
        between it and the one before; to be told of passes that read no prompt.

        found  sessions whose query gave candidates
        """
        if self._has_settled(sessions, found) and self._size is not None:
            self._size.count(sessions, tokens, seconds)

    def _has_settled(self, sessions: int, found: int) -> bool:
        """Whether passes count again since the draft began to rest or to work."""
        if not self._settled:
            self._settling += 1
            has_caught_up = self._rests or found >= _SETTLED_SHARE * sessions
            wait = _SETTLING_PASSES[self._rests] if has_caught_up else _LONGEST_SETTLING
            self._settled = self._settling > wait
        return self._settled

    def _size_of(self, sessions: int) -> _Size | None:
        """Of numbers that differ by less than a factor of two: 2, 3 to 4, 5 to 8, 9 to 16, ..."""
        if sessions < FEWEST:
            return None
        about = (sessions - 1).bit_length()
        if about not in self._sizes:
            self._sizes[about] = self._expected_of(sessions)
        return self._sizes[about]

    def _expected_of(self, sessions: int) -> _Size:
        """What is believed of so many sessions before anything was tried."""
        if pays(self._promised(EXPECTED_AGREEMENT, sessions)):
            return _Size()
        # A trial costs some fifty passes beside the draft, which may take twice as long.
        could_pay = pays(self._promised(1.0, sessions))
        stay = _FIRST_STAY if could_pay else _LONGEST_STAY
        return _Size(rests=True, left=stay, next_stay=stay)
