"""CARD: nobody waits (arXiv 2508.04462).

Only while the target reads the prompt the draft keeps to a head start and leaves the cores to the
target: there is nothing to correct yet.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress

HEAD_START = 12
"""Draft passes before the first commit: a tree of any use to the first queries."""


class Card(Pacing):
    adapts = True

    def draft_may_run(self, progress: Progress) -> bool:
        return progress.begun or progress.passes < HEAD_START
