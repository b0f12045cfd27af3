"""Draft-then-verify: the draft makes γ passes while the target waits, then they swap
(Leviathan, Kalman, Matias, arXiv 2211.17192)."""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress


class DraftThenVerify(Pacing):
    waits = True
    parallel = False

    def draft_may_run(self, progress: Progress) -> bool:
        return progress.passes < progress.num_draft_tokens

    def passes_at_once(self, progress: Progress) -> int:
        return progress.num_draft_tokens - progress.passes

    def target_may_run(self, progress: Progress) -> bool:
        return progress.exhausted or progress.passes >= progress.num_draft_tokens
