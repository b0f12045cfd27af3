"""How often a session's candidates are accepted, against how often they promised to be."""

from __future__ import annotations

from dataclasses import dataclass

from card.speculation.control.costs import MEMORY, PRIOR
from card.speculation.control.interface import Outcome

AGREEMENT = 0.7
"""Chance that a candidate is accepted, until measured."""


@dataclass(slots=True)
class Acceptance:
    """Of one session's candidates, of late, as far as they were reached.

    reached, accepted  candidates; promised: the sum of their chances
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
        if not outcome.drafted:
            return
        accepted = min(outcome.accepted, outcome.drafted)
        reached = accepted + (accepted < outcome.drafted and outcome.rejected)
        above, promised = 1.0, 0.0
        for chance in outcome.chances[:reached]:
            promised += chance / above if above else 0.0
            above = chance
        fade = min(1.0, MEMORY / (self.reached + reached))
        self.reached = (self.reached + reached) * fade
        self.accepted = (self.accepted + accepted) * fade
        self.promised = (self.promised + promised) * fade
