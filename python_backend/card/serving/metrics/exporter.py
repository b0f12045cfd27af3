"""Sends metrics to Triton: any thread counts under a lock, and one thread sends.

Every change of a Triton metric is a round trip to the server's process (15 to 20 µs), so the
threads that serve requests never send.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from card.serving.metrics.families import FAMILIES, Labels, labels_of

Series = tuple[str, Labels]


class Exporter:
    """Safe to call from any thread; `flush` from one."""

    def __init__(self, metric_family: Any) -> None:
        """Create every series. `metric_family` is `pb_utils.MetricFamily`, or a double of it."""
        # Families and metrics live as long as this object: a collected one vanishes.
        self._families: list[Any] = []
        self._metrics: dict[Series, Any] = {}
        for family in FAMILIES:
            kind = getattr(metric_family, family.kind.upper())
            made = metric_family(name=family.name, description=family.help, kind=kind)
            self._families.append(made)
            buckets = {"buckets": list(family.buckets)} if family.buckets else {}
            for labels in family.series():
                metric = made.Metric(labels=dict(labels), **buckets)
                self._metrics[family.name, labels] = metric
        self._lock = threading.Lock()
        self._added: defaultdict[Series, float] = defaultdict(float)
        self._observed: defaultdict[Series, list[float]] = defaultdict(list)
        self._set: dict[Series, float] = {}
        self._shown: dict[Series, float] = {}

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Increase a counter; raises KeyError for a series that `families` lacks."""
        series = self._series(name, labels)
        with self._lock:
            self._added[series] += amount

    def observe(self, name: str, values: Iterable[float], **labels: str) -> None:
        """Put values into a histogram."""
        series = self._series(name, labels)
        with self._lock:
            self._observed[series].extend(values)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge to its present value."""
        series = self._series(name, labels)
        with self._lock:
            self._set[series] = value

    def flush(self) -> None:
        """Send the changes since the last call."""
        with self._lock:
            added, self._added = self._added, defaultdict(float)
            observed, self._observed = self._observed, defaultdict(list)
            changed = {s: v for s, v in self._set.items() if self._shown.get(s) != v}
            self._shown |= changed
        for series, amount in added.items():
            if amount:
                self._metrics[series].increment(amount)
        for series, value in changed.items():
            self._metrics[series].set(value)
        for series, values in observed.items():
            for value in values:  # Triton takes one at a time
                self._metrics[series].observe(value)

    def _series(self, name: str, labels: dict[str, str]) -> Series:
        series = (name, labels_of(labels))
        if series not in self._metrics:
            raise KeyError(f"{name} has no series with the labels {labels}")
        return series
