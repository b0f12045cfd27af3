"""SpecBranch: the target verifies the chain before a branch point while the draft follows the
branches (arXiv 2506.01979).

The draft's tree forks at a doubtful token (growth `branch`). The target's pass begins when the
chain below the last committed token reaches a fork or γ tokens. During the target's pass the draft
makes at most γ passes, because longer drafting does not pay.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress


class Branch(Pacing):
    waits = True
    looks_ahead = True
    growth = "branch"
    title = "SpecBranch"

    def draft_may_run(self, progress: Progress) -> bool:
        """Allow the passes that complete the chain of γ tokens, then γ passes for its branches."""
        num_draft_tokens = progress.num_draft_tokens
        return progress.passes < max(0, num_draft_tokens - progress.inherited) + num_draft_tokens

    def target_may_run(self, progress: Progress) -> bool:
        is_whole = max(progress.ahead, progress.passes) >= progress.num_draft_tokens
        return progress.exhausted or progress.forks or is_whole
