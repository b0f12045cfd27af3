"""CARD: neither model waits for the other (arXiv 2508.04462); and `auto`.

The draft waits while the target reads the prompt, so that the first token comes as early as without
a draft. A draft with a device of its own does not wait: it takes a head start.

With `card` the draft always works. With `auto` the controller chooses before each pass whether the
draft rests, works beside the target, or takes turns with it. In turns the target waits for the
number of draft passes with the highest gain, which pays where both models share a device.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress

HEAD_START = 12
"""Draft passes before the first commit, enough for a useful first tree."""


class Card(Pacing):
    title = "CARD"

    def draft_may_run(self, progress: Progress) -> bool:
        return progress.begun or (progress.apart and progress.passes < HEAD_START)


class Auto(Card):
    adapts = True
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
