"""How long the text of a stream is gathered into one delta."""

from __future__ import annotations

from dataclasses import dataclass

from card.cores import usable_cores
from card.settings import ServingSettings

_DELTAS_PER_CORE = 100
"""Deltas per second that each core of this machine may be worth, unless the settings say
otherwise: a delta takes one a millisecond, and the engines want it too."""

_LONGEST_NS = 1_000_000_000
"""Nobody's text is kept back for longer, however many streams there are."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """At least `flush_ns`; with many streams as long as keeps all of them together to so many
    deltas per second, beside their first and last ones, but a second at most."""

    flush_ns: int
    deltas_per_s: float

    @classmethod
    def of(cls, serving: ServingSettings) -> Gathering:
        deltas_per_s = serving.deltas_per_s or _DELTAS_PER_CORE * usable_cores()
        return cls(int(serving.flush_ms * 1e6), deltas_per_s)

    def interval_ns(self, streams: int, *, for_device: bool = False) -> int:
        """Between two deltas of each of so many streams.

        for_device  of one behind whose text a device drafts: it waits for no more text
        """
        shared_ns = min(int(streams / self.deltas_per_s * 1e9), _LONGEST_NS)
        return shared_ns if for_device else max(self.flush_ns, shared_ns)
