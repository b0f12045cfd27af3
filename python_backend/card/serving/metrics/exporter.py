"""The table of all metrics of `card`, and what sends them to Triton.

Names and meanings are a contract with dashboards and alerts; `docs/operations.md` explains them.
Every series exists, at 0, from the start, so that a first event is a visible increase. Every change
of a Triton metric is a round trip to the server's process (15 to 20 µs), so the threads that serve
requests count under a lock, and one thread sends.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from card.cache import ENGINES, MAX_ROWS, WAYS
from card.serving.requests.refusal import CODES, REASONS
from card.speculation.pacing import PACINGS, counted_as

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

DECODINGS = tuple(dict.fromkeys(map(counted_as, PACINGS)))
POSITIONS = tuple(map(str, range(MAX_ROWS)))
OUTCOMES = ("stop", "length", *(code.lower() for code in CODES))

TOKEN_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 64.0)
TIME_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
                5.0, 10.0, 30.0, 60.0, 120.0)  # fmt: skip
"""Seconds."""

_PER_DECODING = {"decoding": DECODINGS}


@dataclass(frozen=True)
class Family:
    """One metric. `labels` gives all values of each label, `buckets` is a histogram's alone."""

    name: str
    kind: Kind
    help: str
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    def series(self) -> Iterator[Labels]:
        """Every combination of label values."""
        for values in itertools.product(*self.labels.values()):
            yield labels_of(dict(zip(self.labels, values, strict=True)))


def labels_of(labels: Mapping[str, str]) -> Labels:
    """In one order, whatever the caller's."""
    return tuple(sorted(labels.items()))


def _counter(name: str, text: str, **labels: tuple[str, ...]) -> Family:
    return Family(name, "counter", text, labels or _PER_DECODING)


def _gauge(name: str, text: str, **labels: tuple[str, ...]) -> Family:
    return Family(name, "gauge", text, labels)


def _seconds(name: str, text: str) -> Family:
    return Family(name, "histogram", text, _PER_DECODING, TIME_BUCKETS)


FAMILIES: tuple[Family, ...] = (
    # requests
    _counter(
        "card_requests_total",
        "Requests that got a slot, by how they ended: stop, length, or the code of their error.",
        decoding=DECODINGS,
        outcome=OUTCOMES,
    ),
    _counter(
        "card_rejections_total",
        "Requests refused before they got a slot, by reason.",
        reason=REASONS,
    ),
    _seconds("card_queue_time_seconds", "From a request's arrival in card to its slot."),
    _seconds(
        "card_time_to_first_token_seconds",
        "From a request's arrival in card to its first committed token.",
    ),
    _seconds(
        "card_inter_token_latency_seconds",
        "Between two looks at a stream that found commits; tokens of one commit come together.",
    ),
    _seconds(
        "card_time_per_output_token_seconds",
        "Per request: from its first token to its last, divided by the tokens after the first.",
    ),
    _seconds("card_request_duration_seconds", "From a request's arrival in card to its end."),
    # tokens
    _counter("card_committed_tokens_total", "Tokens that the target committed."),
    _counter("card_drafted_tokens_total", "Candidates that the target verified."),
    _counter("card_accepted_tokens_total", "Candidates that the target accepted."),
    _counter("card_drafts_total", "Target steps that verified candidates."),
    _counter(
        "card_accepted_at_total",
        "Candidates accepted, by their place behind the text.",
        position=POSITIONS,
    ),
    _counter("card_target_steps_total", "Target passes that committed, summed over sessions."),
    Family(
        "card_target_passes_total",
        "counter",
        "Target passes; the steps of all sessions divided by it are the sessions that shared one.",
    ),
    Family(
        "card_tokens_per_step",
        "histogram",
        "Tokens that one target step committed.",
        _PER_DECODING,
        TOKEN_BUCKETS,
    ),
    # candidate cache
    _counter("card_queries_total", "Queries of the candidate cache."),
    _counter("card_query_hits_total", "Queries that gave candidates."),
    _counter("card_query_misses_total", "Queries that gave none."),
    _counter("card_corrections_total", "Steps that rejected a candidate."),
    _counter("card_re_roots_total", "Times that the draft moved its tree to what was committed."),
    _counter("card_restarts_total", "Re-roots at a committed token that the tree lacked."),
    _counter("card_foreign_tokens_total", "Accepted candidates that were not the target's choice."),
    _counter("card_draft_layers_total", "Layers of candidates that the draft added to its trees."),
    _counter("card_draft_layers_lost_total", "Of these, layers that a commit threw away."),
    _counter("card_draft_rows_saved_total", "Rows of draft passes that shared nodes did not need."),
    # kept KV
    _counter("card_prefix_hits_total", "Requests with a prompt that began with kept text."),
    _counter("card_prefix_hit_tokens_total", "Tokens of prompts that were kept and not read."),
    # time, summed over sessions
    _counter("card_draft_running_seconds_total", "Session time in which the draft grew a tree."),
    _counter("card_draft_idle_seconds_total", "Session time in which it had nothing to grow."),
    _counter("card_target_running_seconds_total", "Session time in which the target could decode."),
    _counter("card_target_wait_seconds_total", "Session time in which it waited for the draft."),
    # now
    _gauge("card_slots", "Slots in all."),
    _gauge("card_slots_in_use", "Slots that hold a session, or that the target holds."),
    _gauge("card_kv_block_tokens", "Tokens of a block of KV."),
    _gauge("card_kv_blocks", "Blocks of KV that the texts of all slots fill at most."),
    _gauge("card_kv_blocks_in_use", "Blocks that the texts of open sessions fill, prompts whole."),
    _gauge("card_open_sessions", "Sessions being decoded.", decoding=DECODINGS),
    _gauge("card_queued_requests", "Requests that wait for a slot."),
    _gauge("card_engine_up", "Whether an engine is attached and beating.", engine=ENGINES),
    _gauge(
        "card_engine_silence_seconds",
        "Seconds since an engine's last heartbeat; -1 before the first.",
        engine=ENGINES,
    ),
    _gauge("card_draft_rests", "Whether sessions of CARD go without the draft: it does not pay."),
    _gauge(
        "card_way_tokens_per_second",
        "Tokens per second of the latest passes of auto that went each way.",
        way=WAYS,
    ),
    _gauge("card_way_share", "Share of the time of auto's latest passes, by way.", way=WAYS),
)

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
