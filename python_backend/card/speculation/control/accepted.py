"""How often a draft's first candidate is accepted, against how often it promised to be."""

from __future__ import annotations

from dataclasses import dataclass

from card.speculation.control.costs import MEMORY, PRIOR
from card.speculation.control.interface import Outcome

AGREEMENT = 0.7
"""Chance that a candidate is accepted, until measured."""


@dataclass(slots=True)
class Acceptance:
    """Of the first candidate at each step of one session, of late, as far as steps were reached.

    reached, accepted  steps; promised: the sum of their chances
    """

    reached: float = PRIOR
    accepted: float = PRIOR * AGREEMENT
    promised: float = PRIOR * AGREEMENT

    @property
    def rate(self) -> float:
        """Chance that the next candidate is accepted."""
        return self.accepted / self.reached

    @property
    def discount(self) -> float:
        """What a candidate's chance is multiplied by, and each one's behind it once more."""
        return min(1.0, self.accepted / self.promised)

    def observe(self, outcome: Outcome) -> None:
        reached = len(outcome.chances)
        if not reached:
            return
        fade = min(1.0, MEMORY / (self.reached + reached))
        self.reached = (self.reached + reached) * fade
        self.accepted = (self.accepted + outcome.agreed) * fade
        self.promised = (self.promised + sum(outcome.chances)) * fade
