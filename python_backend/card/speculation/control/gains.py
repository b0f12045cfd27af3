"""What candidates gain over decoding alone, as costs and acceptance predict it."""

from __future__ import annotations

from typing import NamedTuple

from card.engines.row_costs import CostCurve
from card.speculation.control.costs import PassCosts


def ideal_tokens(rows: int, agreement: float) -> float:
    """Expected tokens of one pass over a chain of `rows` - 1 candidates and the last committed
    token, each candidate being accepted with chance `agreement`: (1 - a^rows) / (1 - a)."""
    if agreement >= 1.0:
        return float(rows)
    return float((1.0 - agreement**rows) / (1.0 - agreement))


class Turns(NamedTuple):
    """Passes of the draft for which the target waits, the milliseconds that these and its own pass
    take together, and what that gains."""

    draft_passes: int
    ms: float
    gain: float


class Gains:
    """Tokens per second over those of decoding alone."""

    def __init__(self, curve: CostCurve, costs: PassCosts) -> None:
        self._curve = curve
        self._costs = costs

    def of_chains(self, agreement: float, sessions: int, *, alone: bool) -> tuple[int, float]:
        """The best rows of each of `sessions` sessions, and what they gain, if nobody waits for
        their candidates."""
        agreement = round(agreement, 2)
        return self._costs.lately(
            (agreement, sessions, alone), lambda: self._of_chains(agreement, sessions, alone)
        )

    def _of_chains(self, agreement: float, sessions: int, alone: bool) -> tuple[int, float]:
        plain_ms = self._costs.ms(sessions, sessions, alone=True)
        return max(
            (
                (
                    rows,
                    ideal_tokens(rows, agreement)
                    * plain_ms
                    / self._costs.ms(rows * sessions, sessions, alone=alone),
                )
                for rows in self._curve.choices
            ),
            key=lambda found: found[1],
        )

    def of_turns(self, agreement: float, draft_pass_ms: float) -> Turns:
        """The best ones of a session that has the passes to itself; each pass of the draft adds a
        candidate to its chain.

        draft_pass_ms  of a pass as it was measured at load
        """
        agreement = round(agreement, 2)
        return self._costs.lately(
            (agreement, draft_pass_ms), lambda: self._of_turns(agreement, draft_pass_ms)
        )

    def _of_turns(self, agreement: float, draft_pass_ms: float) -> Turns:
        plain_ms = self._costs.ms(1, 1, alone=True)
        draft_ms = self._costs.draft_ms(draft_pass_ms)

        best = Turns(0, plain_ms, 0.0)
        for draft_passes in range(1, max(self._curve.choices)):
            rows = 1 + draft_passes
            ms = draft_passes * draft_ms + self._costs.ms(rows, 1, alone=True)
            gain = ideal_tokens(rows, agreement) * plain_ms / ms
            if gain < best.gain:
                break
            best = Turns(draft_passes, ms, gain)
        return best
