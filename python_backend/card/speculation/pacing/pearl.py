"""PEARL: draft and target run at the same time, in rounds of γ passes (arXiv 2408.11850).

Pre-verify: while the draft makes its γ passes, the target verifies the first drafted token, which
is the token that the target commits by itself. Post-verify: while the target verifies a chunk, the
draft makes the next γ passes. The model that ends a round first waits for the other.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress


class Pearl(Pacing):
    waits = True
    looks_ahead = True
    title = "PEARL"

    def draft_may_run(self, progress: Progress) -> bool:
        """After a correction no layers survive (pre-verify). Otherwise the rest of the chunk
        survives (post-verify), and the draft completes the chunk first."""
        num_draft_tokens, inherited = progress.num_draft_tokens, progress.inherited
        unfinished = max(0, num_draft_tokens - 1 - inherited) if inherited else 0
        return progress.passes < unfinished + num_draft_tokens

    def target_may_run(self, progress: Progress) -> bool:
        """A session without a candidate ahead is in pre-verify."""
        num_draft_tokens, ahead = progress.num_draft_tokens, progress.ahead
        is_whole = ahead >= self.chunk(num_draft_tokens) or progress.passes >= num_draft_tokens
        return not ahead or progress.exhausted or is_whole

    def chunk(self, num_draft_tokens: int) -> int:
        """One less than γ, because the target's own token is the chunk's first."""
        return num_draft_tokens - 1
