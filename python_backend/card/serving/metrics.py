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

from card.cache import Decoding, SlotCounters
from card.serving.sessions import Session

EXPORT_S = 0.25
_STEP_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)

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
    "card_tokens_per_step_bucket": "Steps that committed at most `le` tokens.",
    "card_tokens_per_step_sum": "Tokens committed by all steps.",
    "card_tokens_per_step_count": "Steps.",
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
        kinds = ((_COUNTERS, pb_utils.MetricFamily.COUNTER), (_GAUGES, pb_utils.MetricFamily.GAUGE))
        # Families and metrics live as long as this object: a collected one vanishes.
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=kind)
            for table, kind in kinds
            for name, text in table.items()
        }
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._lock = threading.Lock()
        self._added: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._set: dict[tuple[str, Labels], float] = {}
        self._shown: dict[tuple[str, Labels], float] = {}
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
        self._add("card_tokens_per_step_sum", committed, decoding=label)
        self._add("card_tokens_per_step_count", int(histogram.sum()), decoding=label)
        for most in _STEP_BUCKETS:
            steps = int(histogram[: most + 1].sum())
            self._add("card_tokens_per_step_bucket", steps, decoding=label, le=str(most))
        steps = int(histogram.sum())
        self._add("card_tokens_per_step_bucket", steps, decoding=label, le="+Inf")

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
            added = {key: amount for key, amount in self._added.items()}
            self._added.clear()
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

    def _metric(self, key: tuple[str, Labels]) -> Any:
        if key not in self._metrics:
            name, labels = key
            self._metrics[key] = self._families[name].Metric(labels=dict(labels))
        return self._metrics[key]
