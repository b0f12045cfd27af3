"""CARD: neither model waits for the other (arXiv 2508.04462); and `auto`.

While the target reads the prompt, the draft leaves the machine to it, so that the first token
comes as early as without a draft. A draft that has a device of its own takes a head start.

With `auto` the controller chooses between CARD and turns from pass to pass. Two models that share a
device may gain more in turns: the target then waits for as many draft passes as gain most.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress

HEAD_START = 12
"""Draft passes before the first commit: a tree of any use to the first queries."""


class Card(Pacing):
    adapts = True
    title = "CARD"

    def draft_may_run(self, progress: Progress) -> bool:
        return progress.begun or (progress.apart and progress.passes < HEAD_START)


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
