"""CARD: nobody waits (arXiv 2508.04462).

Only while the target reads the prompt the draft leaves the machine to it, so that the first token
is as early as without a draft. A draft that has a device of its own takes a head start.
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
