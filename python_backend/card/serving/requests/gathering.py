"""The interval over which the text of a stream is gathered into one delta."""

from __future__ import annotations

from dataclasses import dataclass

from card.cores import usable_cores
from card.settings import ServingSettings

_DELTAS_PER_CORE = 100
"""Deltas per second and core of this machine, unless the settings say otherwise: a delta takes a
core for 1 ms, and the engines need the cores too."""

_LONGEST_NS = 1_000_000_000
"""Longest interval for any number of streams."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """An interval of at least `flush_ns`. With many streams it grows, so that all streams together
    send a limited number of deltas per second (first and last ones not counted). It is at most a
    second."""

    flush_ns: int
    deltas_per_s: float

    @classmethod
    def of(cls, serving: ServingSettings) -> Gathering:
        deltas_per_s = serving.deltas_per_s or _DELTAS_PER_CORE * usable_cores()
        return cls(int(serving.flush_ms * 1e6), deltas_per_s)

    def interval_ns(self, streams: int, *, for_device: bool = False) -> int:
        """Interval between two deltas of each of `streams` streams.

        for_device  a device drafts for the stream, so its text is sent without gathering
        """
        shared_ns = min(int(streams / self.deltas_per_s * 1e9), _LONGEST_NS)
        return shared_ns if for_device else max(self.flush_ns, shared_ns)
