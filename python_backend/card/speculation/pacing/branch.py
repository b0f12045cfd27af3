"""SpecBranch: the target verifies what is before a branch point while the draft follows the
branches (arXiv 2506.01979).

Where the draft is in doubt its tree forks (growth `branch`). The target's pass begins when the
chain below the last committed token has come to a fork, or is γ tokens long. Meanwhile the draft
makes γ passes at most: drafting for longer than a pass of the target never pays.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress


class Branch(Pacing):
    waits = True
    looks_ahead = True
    growth = "branch"
    title = "SpecBranch"

    def draft_may_run(self, progress: Progress) -> bool:
        """What the chain lacks of γ tokens, and γ passes for its branches."""
        num_draft_tokens = progress.num_draft_tokens
        return progress.passes < max(0, num_draft_tokens - progress.inherited) + num_draft_tokens

    def target_may_run(self, progress: Progress) -> bool:
        is_whole = max(progress.ahead, progress.passes) >= progress.num_draft_tokens
        return progress.exhausted or progress.forks or is_whole
