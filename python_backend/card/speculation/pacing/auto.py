"""CARD, or turns: the controller chooses from pass to pass.

Two models that share a device may gain more in turns than at once: the target then waits until the
draft has had its turn, of so many passes as gain most.
"""

from __future__ import annotations

from card.speculation.pacing.card import Card
from card.speculation.pacing.interface import Progress


class Auto(Card):
    takes_turns = True
    counted_as = "card"
    title = "auto"

    def draft_may_run(self, progress: Progress) -> bool:
        may_go_on = not progress.awaited or progress.passes < progress.awaited
        return may_go_on and super().draft_may_run(progress)

    def passes_at_once(self, progress: Progress) -> int:
        return max(1, progress.awaited - progress.passes)

    def target_may_run(self, progress: Progress) -> bool:
        return progress.exhausted or progress.passes >= progress.awaited
