"""What `card` counts, under stable names, at the server's metrics endpoint.

Every change of a Triton metric is a round trip to the server's process, so counts are gathered
here and handed over by a thread of their own, a few times a second.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from card.cache import Decoding, SlotCounters
from card.serving.sessions import Session

EXPORT_S = 0.25
_TOKENS_PER_STEP = "card_tokens_per_step"
_STEP_BUCKETS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 64.0]

_COUNTERS = {
    "card_requests_total": "Requests answered, by outcome.",
    "card_rejections_total": "Requests refused before they got a slot, by reason.",
    "card_committed_tokens_total": "Tokens that the target committed.",
    "card_target_steps_total": "Forward passes that committed tokens, summed over sessions.",
    "card_drafted_tokens_total": "Candidates that the target verified.",
    "card_accepted_tokens_total": "Candidates that the target accepted.",
    "card_queries_total": "Queries of the candidate cache.",
    "card_query_hits_total": "Queries that gave candidates.",
    "card_query_misses_total": "Queries that gave none.",
    "card_corrections_total": "Steps in which the target's token differed from the candidate.",
    "card_re_roots_total": "Times that the draft moved its tree to what was committed.",
    "card_restarts_total": "Re-roots whose committed token was not in the tree.",
}
_GAUGES = {
    "card_slots": "Slots in all.",
    "card_slots_in_use": "Slots that hold a session or wait for the target to let go of one.",
    "card_queued_requests": "Requests that wait for a slot.",
    "card_engine_up": "Whether an engine is attached and beating.",
}
_PER_SESSION = {
    "steps": "card_target_steps_total",
    "drafted": "card_drafted_tokens_total",
    "accepted": "card_accepted_tokens_total",
    "queries": "card_queries_total",
    "hits": "card_query_hits_total",
    "misses": "card_query_misses_total",
    "corrections": "card_corrections_total",
    "re_roots": "card_re_roots_total",
    "restarts": "card_restarts_total",
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts now, exports soon. Safe to call from any thread."""

    def __init__(self, slots: int) -> None:
        kinds = pb_utils.MetricFamily
        # Families and metrics live as long as this object: a collected one vanishes.
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=kind)
            for table, kind in (
                (_COUNTERS, kinds.COUNTER),
                (_GAUGES, kinds.GAUGE),
                ({_TOKENS_PER_STEP: "Tokens that one target step committed."}, kinds.HISTOGRAM),
            )
            for name, text in table.items()
        }
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._lock = threading.Lock()
        self._added: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._set: dict[tuple[str, Labels], float] = {}
        self._shown: dict[tuple[str, Labels], float] = {}
        self._steps: dict[str, NDArray[np.int64]] = {}  # decoding -> [tokens] steps to observe
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._export_for_ever, name="metrics", daemon=True)
        self._gauge("card_slots", slots)
        self.occupancy(0, 0)
        for decoding in Decoding:
            for name in (*_PER_SESSION.values(), "card_committed_tokens_total"):
                self._add(name, 0, decoding=decoding.name.lower())
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    # --- what happened ------------------------------------------------------------------------

    def answered(self, session: Session, outcome: str) -> None:
        """A request ended: `stop`, `length`, or the code of its error."""
        label = session.request.decoding.name.lower()
        self._add("card_requests_total", 1, decoding=label, outcome=outcome)

    def rejected(self, reason: str) -> None:
        """A request was refused; `reason` is the code of its error."""
        self._add("card_rejections_total", 1, reason=reason)

    def ended(self, session: Session, counters: SlotCounters) -> None:
        """A session's slot is free again and its counters are final."""
        label = session.request.decoding.name.lower()
        for field, name in _PER_SESSION.items():
            self._add(name, getattr(counters, field), decoding=label)
        histogram = counters.tokens_per_step
        committed = int((histogram * np.arange(len(histogram))).sum())
        self._add("card_committed_tokens_total", committed, decoding=label)
        with self._lock:
            self._steps[label] = histogram + self._steps.get(label, np.zeros_like(histogram))

    def occupancy(self, slots: int, queue: int) -> None:
        """How many slots are in use and how many requests wait."""
        self._gauge("card_slots_in_use", slots)
        self._gauge("card_queued_requests", queue)

    def engine_up(self, engine: str, alive: bool) -> None:
        self._gauge("card_engine_up", float(alive), engine=engine)

    # --- export -------------------------------------------------------------------------------

    def _add(self, name: str, amount: float, **labels: str) -> None:
        with self._lock:
            self._added[name, tuple(sorted(labels.items()))] += amount

    def _gauge(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._set[name, tuple(sorted(labels.items()))] = value

    def _export_for_ever(self) -> None:
        while not self._stopping.wait(EXPORT_S):
            self.export()

    def export(self) -> None:
        """Hand over what changed since the last time."""
        with self._lock:
            added = dict(self._added)
            self._added.clear()
            observed, self._steps = self._steps, {}
            changed = {
                key: value for key, value in self._set.items() if self._shown.get(key) != value
            }
        for key, amount in added.items():
            metric = self._metric(key)
            if amount:
                metric.increment(amount)
        for key, value in changed.items():
            self._metric(key).set(value)
            self._shown[key] = value
        for decoding, histogram in observed.items():
            metric = self._metric((_TOKENS_PER_STEP, (("decoding", decoding),)))
            for tokens in histogram.nonzero()[0].tolist():
                for _ in range(int(histogram[tokens])):  # Triton observes one value at a time
                    metric.observe(float(tokens))

    def _metric(self, key: tuple[str, Labels]) -> Any:
        if key not in self._metrics:
            name, labels = key
            buckets = {"buckets": _STEP_BUCKETS} if name == _TOKENS_PER_STEP else {}
            self._metrics[key] = self._families[name].Metric(labels=dict(labels), **buckets)
        return self._metrics[key]
