"""SSD (Saguaro): the target asks for a chain of γ tokens and waits for it; while it verifies the
chain the draft prepares one for each answer (arXiv 2603.03251).

If the answer is among those that the draft prepared for (growth `fan_out`), the next chain is there
at once; else the draft makes it now, which is the paper's "just in time" way.
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
