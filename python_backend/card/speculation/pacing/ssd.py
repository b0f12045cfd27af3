"""SSD (Saguaro): the target waits for a chain of γ tokens; while it verifies the chain, the draft
prepares a chain for each likely outcome (arXiv 2603.03251).

If the draft prepared for the actual outcome (growth `fan_out`), the next chain is ready at once.
Otherwise the draft makes the chain then, the paper's "just in time" way.
"""

from __future__ import annotations

from card.speculation.pacing.interface import Pacing, Progress


class Ssd(Pacing):
    waits = True
    looks_ahead = True
    growth = "fan_out"
    title = "SSD"

    def target_may_run(self, progress: Progress) -> bool:
        is_whole = max(progress.ahead, progress.passes) >= progress.num_draft_tokens
        return progress.exhausted or is_whole
