"""Counts the events of requests, which the follower and the model report; reads the rest in the
pool."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import recfunctions
from numpy.typing import NDArray

from card.cache import (
    DRAFT_COUNTERS,
    ENGINES,
    MAX_ROWS,
    TARGET_COUNTERS,
    Pool,
    SlotState,
    choice_words,
)
from card.engines.interface import BLOCK
from card.serving.log import RequestLog
from card.serving.metrics.exporter import DECODINGS, Exporter
from card.serving.requests.refusal import REASONS, Refusal
from card.serving.requests.sessions import Session
from card.speculation.pacing import PACINGS, counted_as

log = logging.getLogger(__name__)

EXPORT_S = 0.25


_COUNTERS = {
    "steps": "card_target_steps_total",
    "drafts": "card_drafts_total",
    "drafted": "card_drafted_tokens_total",
    "accepted": "card_accepted_tokens_total",
    "queries": "card_queries_total",
    "hits": "card_query_hits_total",
    "misses": "card_query_misses_total",
    "corrections": "card_corrections_total",
    "re_roots": "card_re_roots_total",
    "restarts": "card_restarts_total",
    "foreign": "card_foreign_tokens_total",
    "layers": "card_draft_layers_total",
    "lost_layers": "card_draft_layers_lost_total",
    "saved_rows": "card_draft_rows_saved_total",
    "reuses": "card_prefix_hits_total",
    "reused_tokens": "card_prefix_hit_tokens_total",
    "draft_running_ns": "card_draft_running_seconds_total",
    "draft_idle_ns": "card_draft_idle_seconds_total",
    "target_running_ns": "card_target_running_seconds_total",
    "target_waiting_ns": "card_target_wait_seconds_total",
}
"""Metrics by the engines' counter in the pool that they show; `_ns`: as seconds."""


@dataclass(slots=True)
class _Times:
    """One request: its id, for the log, and times on the monotonic clock."""

    request_id: str
    prompt: str | None
    arrival_ns: int
    tokens: int = 0
    first_ns: int = 0
    last_ns: int = 0


class Metrics:
    """Counts and logs; a thread of its own exports. `stop` ends that thread.

    `admitted`, `committed`, `answered`, `ended` and `occupancy` are called from one event loop,
    all others from any thread.
    """

    def __init__(
        self,
        pool: Pool,
        metric_family: Any,
        log: RequestLog,
        context_tokens: int,
        engines: Sequence[str] = ENGINES,
    ) -> None:
        """`engines` are the engines of this service, `context_tokens` the most of one text."""
        self._engines = engines
        self._pool = pool
        self._log = log
        self._exporter = Exporter(metric_family)
        self._exporter.set("card_slots", pool.geometry.slots)
        self._exporter.set("card_kv_block_tokens", BLOCK)
        self._exporter.set("card_kv_blocks", pool.geometry.slots * -(-context_tokens // BLOCK))
        self._reading = threading.Lock()
        self._progress = ProgressReader(pool)
        self._refusals = self._refusals_so_far()
        self._passes = pool.target_passes
        self._requests: dict[int, _Times] = {}
        self._stopping = threading.Event()
        self.occupancy(0, 0)
        self.export()
        self._thread = threading.Thread(target=self._export_for_ever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    # --- requests -----------------------------------------------------------------------------

    def rejected(self, refusal: Refusal, request_id: str, prompt: str | None) -> None:
        """Count a request that got no slot."""
        self._exporter.add("card_rejections_total", 1, reason=refusal.reason)
        self._log.refused(refusal, request_id, prompt)

    def admitted(
        self, session: Session, arrival_ns: int, request_id: str, prompt: str | None
    ) -> None:
        """Count a request that got a slot."""
        waited_s = (time.monotonic_ns() - arrival_ns) / 1e9
        self._exporter.observe("card_queue_time_seconds", [waited_s], decoding=_mode(session))
        self._requests[session.session_id] = _Times(request_id, prompt, arrival_ns)

    def committed(self, session: Session, tokens: int, now_ns: int) -> None:
        """Count new tokens of a session."""
        if not tokens:
            return
        times, observe = self._requests[session.session_id], self._exporter.observe
        if times.tokens:
            gap_s = (now_ns - times.last_ns) / 1e9
            observe("card_inter_token_latency_seconds", [gap_s], decoding=_mode(session))
        else:
            times.first_ns = now_ns
            first_s = (now_ns - times.arrival_ns) / 1e9
            observe("card_time_to_first_token_seconds", [first_s], decoding=_mode(session))
        times.tokens += tokens
        times.last_ns = now_ns

    def answered(self, session: Session, outcome: str) -> None:
        """Count a request that ended: `stop`, `length`, or the code of its error in lower case."""
        mode, add, observe = _mode(session), self._exporter.add, self._exporter.observe
        times = self._requests.pop(session.session_id)
        took_s = (time.monotonic_ns() - times.arrival_ns) / 1e9
        add("card_requests_total", 1, decoding=mode, outcome=outcome)
        observe("card_request_duration_seconds", [took_s], decoding=mode)
        if times.tokens > 1:
            per_token_s = (times.last_ns - times.first_ns) / 1e9 / (times.tokens - 1)
            observe("card_time_per_output_token_seconds", [per_token_s], decoding=mode)
        first_s = (times.first_ns - times.arrival_ns) / 1e9 if times.tokens else None
        self._log.answered(
            times.request_id,
            times.prompt,
            decoding=mode,
            outcome=outcome,
            prompt_tokens=len(session.request.prompt),
            tokens=times.tokens,
            seconds=round(took_s, 4),
            first_token_seconds=None if first_s is None else round(first_s, 4),
            slot=session.slot.index,
        )

    def ended(self) -> None:
        """Read the final counters of slots that are free again, before another session resets
        them."""
        self._read_pool()

    def occupancy(self, slots: int, queue: int) -> None:
        """Set the number of slots in use and of waiting requests."""
        self._exporter.set("card_slots_in_use", slots)
        self._exporter.set("card_queued_requests", queue)

    def engine_up(self, engine: str, alive: bool) -> None:
        self._exporter.set("card_engine_up", float(alive), engine=engine)

    # --- pool ---------------------------------------------------------------------------------

    def export(self) -> None:
        """Read the pool and send everything to Triton."""
        self._read_pool()
        self._show_state()
        self._exporter.flush()

    def _export_for_ever(self) -> None:
        while not self._stopping.wait(EXPORT_S):
            try:
                self.export()
            except Exception:  # frozen figures would look valid
                log.exception("the metrics could not be brought up to date")

    def _read_pool(self) -> None:
        with self._reading:
            progress = self._progress.read()
            refusals = self._refusals_so_far()
            refused, self._refusals = refusals - self._refusals, refusals
            made, known = self._pool.target_passes, self._passes
            self._passes = made
        self._exporter.add("card_target_passes_total", max(0, made - known))
        for decoding, gained in progress.items():
            self._add_progress(decoding, gained)
        for index in refused.nonzero()[0].tolist():
            reason = REASONS[index]
            self._exporter.add("card_rejections_total", int(refused[index]), reason=reason)

    def _refusals_so_far(self) -> NDArray[np.int64]:
        """Refusals of the other models so far, by the index of their reason."""
        refusals = self._pool.refusals.copy()
        refusals[REASONS.index("permission_denied")] += self._pool.denials
        return refusals

    def _add_progress(self, mode: str, gained: Progress) -> None:
        add = self._exporter.add
        for counter, name in _COUNTERS.items():
            unit = 1e9 if counter.endswith("_ns") else 1
            add(name, gained.counters[counter] / unit, decoding=mode)
        for position, count in enumerate(gained.accepted_at.tolist()):
            add("card_accepted_at_total", count, position=str(position))
        add("card_committed_tokens_total", gained.committed, decoding=mode)
        steps = np.repeat(np.arange(len(gained.tokens_per_step)), gained.tokens_per_step)
        self._exporter.observe("card_tokens_per_step", steps.astype(float).tolist(), decoding=mode)

    def _show_state(self) -> None:
        """Set the gauges: KV, sessions by decoding mode, heartbeats, whether the draft rests,
        ways of `auto`."""
        records = self._pool.slots
        is_open = records["state"] == SlotState.OPEN
        open_now = records["pacing"][is_open]
        adopted = records["commit_session_id"] == records["session_id"]
        lengths = records["prompt_length"] + np.where(adopted, records["committed"], 0)
        self._exporter.set("card_kv_blocks_in_use", int((-(-lengths[is_open] // BLOCK)).sum()))
        for mode in DECODINGS:
            count = int(are_counted_as(mode, open_now).sum())
            self._exporter.set("card_open_sessions", count, decoding=mode)
        for engine in self._engines:
            silence_s = self._pool.silence_s(engine)
            shown = round(silence_s, 1) if np.isfinite(silence_s) else -1.0
            self._exporter.set("card_engine_silence_seconds", shown, engine=engine)
        self._exporter.set("card_draft_rests", float(self._pool.draft_stopped))
        for way, (tokens_per_s, share) in self._pool.ways().items():
            self._exporter.set("card_way_tokens_per_second", round(tokens_per_s, 1), way=way)
            self._exporter.set("card_way_share", round(share, 3), way=way)


def _mode(session: Session) -> str:
    return counted_as(session.request.pacing)


_MOST = 1 << 52
"""Most of one counter: 52 days in nanoseconds. The sum over all slots cannot overflow."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Increase of the counters of all sessions of one decoding mode.

    counters         name in the pool -> increase (times in nanoseconds)
    tokens_per_step  [MAX_ROWS + 1] int64, steps by their number of committed tokens
    accepted_at      [MAX_ROWS] int64, accepted candidates by their place behind the text
    """

    counters: dict[str, int]
    tokens_per_step: NDArray[np.int64]
    accepted_at: NDArray[np.int64]

    @property
    def committed(self) -> int:
        """Tokens."""
        return int((self.tokens_per_step * np.arange(len(self.tokens_per_step))).sum())


class ProgressReader:
    """Remembers the last counters of each slot. One thread at a time uses it."""

    def __init__(self, pool: Pool) -> None:
        """Begins at the present counters: sessions of an earlier `card` are not counted."""
        self._pool = pool
        self._target = _Counters([*TARGET_COUNTERS], pool)
        self._draft = _Counters([*DRAFT_COUNTERS], pool)
        self.read()

    def read(self) -> dict[str, Progress]:
        """The increase since the last call, for modes with an increase."""
        records = self._pool.slots
        session_ids = records["session_id"].copy()
        pacings = records["pacing"].copy()
        adopted = records["commit_session_id"] == session_ids
        half = records["flip"] & 1
        followed = records["tree_session_id"][np.arange(len(half)), half] == session_ids
        histograms = records["tokens_per_step"].copy(), records["accepted_at"].copy()
        target = np.concatenate([self._target.values(), *histograms], axis=1)
        draft = self._draft.values()
        same = records["session_id"] == session_ids
        target = self._target.increase(target, session_ids, adopted & same)
        draft = self._draft.increase(draft, session_ids, followed & same)
        return {
            name: self._progress(target[rows].sum(axis=0), draft[rows].sum(axis=0))
            for name in dict.fromkeys(map(counted_as, PACINGS))
            if (target[rows := are_counted_as(name, pacings)].any()) or draft[rows].any()
        }

    def _progress(self, target: NDArray[np.int64], draft: NDArray[np.int64]) -> Progress:
        counted = len(TARGET_COUNTERS)
        counters = dict(zip(TARGET_COUNTERS, target[:counted].tolist(), strict=True))
        counters |= zip(DRAFT_COUNTERS, draft.tolist(), strict=True)
        steps_end = counted + MAX_ROWS + 1
        return Progress(counters, target[counted:steps_end], target[steps_end:])


def are_counted_as(mode: str, pacings: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[slots] bool, whether the pacing in each slot counts as this decoding mode."""
    words = np.array([choice_words(name) for name in PACINGS if counted_as(name) == mode])
    found: NDArray[np.bool_] = (pacings[:, None] == words).all(axis=2).any(axis=1)
    return found


class _Counters:
    """The counters of one engine: the last values of each slot, and their session ids."""

    def __init__(self, names: list[str], pool: Pool) -> None:
        self._records = pool.slots[names]  # a view
        self._seen: NDArray[np.int64] | None = None
        self._session_ids = np.zeros(len(pool.slots), np.int64)

    def values(self) -> NDArray[np.int64]:
        """[slots, counters] int64, now."""
        values: NDArray[np.int64] = recfunctions.structured_to_unstructured(
            self._records, copy=True
        )
        return values

    def increase(
        self, values: NDArray[np.int64], session_ids: NDArray[np.int64], valid: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """[slots, counters] int64 since the last call; 0 for slots that are not `valid`.

        A counter that decreased was reset by a reloaded engine. The draft may have written garbage:
        impossible counts are cut off, so that no sum overflows (Triton's stub dies if a counter
        decreases).
        """
        values = values.clip(0, _MOST)
        if self._seen is None:
            self._seen = np.zeros_like(values)
        known = (session_ids == self._session_ids)[:, None] & (values >= self._seen)
        gained = np.where(known, values - self._seen, values)
        self._seen[valid] = values[valid]
        self._session_ids[valid] = session_ids[valid]
        return np.where(valid[:, None], gained, 0)
