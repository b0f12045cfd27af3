"""What a draft did between two moments."""

from __future__ import annotations

from dataclasses import dataclass

from card.cache import Pool
from card.drafting import DraftTimes


@dataclass(frozen=True, slots=True)
class DraftActivity:
    """Counted since its loop began, or since another moment.

    idle_ns  sessions open, but nothing left to grow
    busy_ns  of its passes
    """

    idle_ns: int
    busy_ns: int
    passes: int

    @classmethod
    def told_by(cls, pool: Pool) -> DraftActivity:
        """Of a draft in another process, as it tells whoever measures."""
        header = pool.header
        words = ("draft_waiting_ns", "draft_busy_ns", "draft_passes")
        return cls(*(int(header[word]) for word in words))

    @classmethod
    def told_in(cls, times: DraftTimes) -> DraftActivity:
        """Of a draft in this process."""
        return cls(times.idle, times.busy, times.passes)

    def since(self, before: DraftActivity) -> DraftActivity:
        """Nothing, if another draft began to count meanwhile."""
        if self.passes < before.passes or self.idle_ns < before.idle_ns:
            return NOTHING
        return DraftActivity(
            self.idle_ns - before.idle_ns,
            self.busy_ns - before.busy_ns,
            self.passes - before.passes,
        )


NOTHING = DraftActivity(0, 0, 0)
