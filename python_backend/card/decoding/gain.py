"""What one session gains from its draft: tokens per second beside it over those without."""

from __future__ import annotations

from dataclasses import dataclass

EXPECTED_GAIN = 1.7
"""Believed of a session before anything is known of it."""

DOUBTED_GAIN = 1.3
"""And where drafts did not pay before: little more than what pays, so that a few passes send a poor
one to rest again."""

_BELIEF = 6.0
"""Passes of decoding alone that the first belief counts for."""

_FIRM_BELIEF = 12.0
"""And where sessions before gained by their drafts: a few unlucky queries say less then."""

_MEMORY = 64.0
"""As many are remembered; older ones fade."""

_MOST_LATE = 32
"""Queries that may find nothing before the first that finds something, as while the draft reads
what it missed; a draft that is late for longer does not pay."""


@dataclass(slots=True)
class Tally:
    """Tokens that passes beside the draft gave, and what these cost in passes of decoding alone."""

    tokens: float = 0.0
    cost: float = 0.0

    @property
    def gain(self) -> float:
        """Tokens for what decoding alone pays for one."""
        return self.tokens / self.cost

    def add(self, tokens: float, cost: float) -> None:
        self.tokens += tokens
        self.cost += cost

    def fade(self, share: float) -> None:
        self.tokens *= share
        self.cost *= share


class Gain:
    """Counts tokens of the draft alone: guesses from the text are there without it.

    seen  all that was observed of a draft that had come to give candidates
    loss  tokens by which passes beside the draft fell behind decoding alone, but for those that it
          may be late for; negative: by which they were ahead
    """

    def __init__(self) -> None:
        self.seen = Tally()
        self.loss = 0.0
        self.believe(EXPECTED_GAIN)

    def doubt(self) -> None:
        """When the draft is tried again, believe no more of it than it was worth to this session so
        far: one that paid on the whole was unlucky of late. And let it be late again."""
        so_far = self.seen.gain if self.seen.cost >= _BELIEF else DOUBTED_GAIN
        self.believe(min(max(so_far, DOUBTED_GAIN), EXPECTED_GAIN))

    def believe(self, gain: float, *, firmly: bool = False) -> None:
        """Begin with that, and let the draft be late."""
        passes = _FIRM_BELIEF if firmly else _BELIEF
        self._recent = Tally(gain * passes, passes)
        self.await_again()

    def await_again(self) -> None:
        """Let the draft be late again, which has much to read."""
        self._heard, self._late = False, 0

    def pardon(self) -> None:
        """So too where it was stopped or is dead; what was lost meanwhile says nothing of it."""
        self.await_again()
        self.loss = min(self.loss, 0.0)

    @property
    def rate(self) -> float:
        """Of late."""
        return self._recent.gain

    def observe(self, found: bool, right: int, cost: float, *, offered: int, shared: bool) -> None:
        """How many of the candidates `offered` to a pass, of a query that found some, or none, were
        right, and its cost in passes of decoding alone; `shared` with other sessions.

        A query that finds nothing behind others that did, or nothing worth a row, is a pass lost to
        the draft, where the session has it for itself; what many lose is for the crowd to find out.
        """
        late = not (found or self._heard) and self._late < _MOST_LATE
        self._heard = self._heard or found
        if shared and not offered and not late:
            return
        if late:
            self._late += 1
            return
        self.loss += cost - (1 + right)
        self._recent.fade(min(1.0, _MEMORY / (self._recent.cost + cost)))
        self._recent.add(1 + right, cost)
        if self._heard:
            self.seen.add(1 + right, cost)
