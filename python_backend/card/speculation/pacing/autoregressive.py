"""Plain decoding: the draft never runs, and the target never queries candidates."""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress


class Autoregressive(Pacing):
    queries = False
    drafts = False
    parallel = False

    def draft_may_run(self, progress: Progress) -> bool:
        return False
