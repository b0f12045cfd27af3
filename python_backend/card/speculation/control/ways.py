"""How the draft works for sessions of one kind: beside the target, or in turns with it.

Two models that share a device, or the way to memory, take it from each other. In turns each has all
of it, and waits for the other one. What either way gains is predicted, and corrected by what it
gave of late.
"""

from __future__ import annotations

from collections.abc import Sequence

from card.speculation.control.accepted import Acceptance
from card.speculation.control.costs import MEMORY, Factor
from card.speculation.control.interface import Outcome
from card.speculation.control.trial import STOP, TRIAL_SHARE


class Ways:
    """acceptance  of the draft's candidates, of all texts of the kind
    in_turns    whether the models take turns now
    """

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.in_turns = False
        self._predicted: dict[bool, float] = {}
        self._given = {in_turns: Factor(1.0) for in_turns in (False, True)}
        self._passes = 0
        self._lost = 0.0

    def predict(self, beside: float, turns: float) -> None:
        """Each way should gain so much now."""
        self._predicted = {False: beside, True: turns}

    def learn(
        self, outcomes: Sequence[Outcome], tokens: int, passes: float, *, in_turns: bool
    ) -> bool:
        """A pass of this way gave so many tokens, in the time of so many passes without the draft.
        The way changes when it has lost too much of late against what the other one should give;
        returns whether it does."""
        for outcome in outcomes:
            self.acceptance.observe(outcome)
        if not self._predicted:
            return False
        self._passes += 1
        given = self._given[in_turns]
        given.fade(self._time)
        given.add(tokens / passes / self._predicted[in_turns])
        if in_turns is self.in_turns:
            other = self._should_gain(in_turns=not in_turns)
            self._lost = max(-2.0 * STOP, self._lost + other * passes - tokens)
        changes = self._lost > STOP
        if changes:
            self._take(not self.in_turns)
        return changes

    def choose(self) -> None:
        """Take the way that should give more, for when the draft works again."""
        if self._predicted:
            beside, in_turns = (self._should_gain(in_turns=way) for way in (False, True))
            self._take(in_turns > beside)

    def _take(self, in_turns: bool) -> None:
        self.in_turns, self._lost = in_turns, 0.0

    def _should_gain(self, *, in_turns: bool) -> float:
        return self._predicted[in_turns] * self._given[in_turns].at(self._time)

    @property
    def _time(self) -> float:
        """So slow that a way which was given up takes no more than its share of the time when it is
        tried again."""
        return MEMORY * TRIAL_SHARE / STOP * self._passes
