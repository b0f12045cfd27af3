"""What is counted, from a pool played by hand to what Triton is told."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_double import slot_request

from card.cache import DRAFT_COUNTERS, Finish, Geometry, Pool, SlotRequest, choice_words
from card.sampling import SamplingParameters
from card.serving.log import RequestLog
from card.serving.metrics import Metrics
from card.serving.metrics.ledger import ProgressReader
from card.serving.requests.sessions import Session
from card.settings import ObservabilitySettings


class MetricFamily:
    """Triton's, as far as it is used; remembers what it was told."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    told: ClassVar[dict[tuple[str, tuple[str, ...]], list[float]]] = {}

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        assert description
        self.name = name
        self.kind = kind

    def Metric(self, *, labels: dict[str, str], buckets: list[float] | None = None) -> Any:
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        values = self.told.setdefault((self.name, tuple(sorted(labels.values()))), [])
        return Series(values)


class Series:
    def __init__(self, values: list[float]) -> None:
        self.values = values

    def increment(self, amount: float) -> None:
        assert amount > 0
        self.values.append(amount)

    def set(self, value: float) -> None:
        self.values[:] = [value]

    def observe(self, value: float) -> None:
        self.values.append(value)


class Scene:
    """A pool of two slots and its metrics, exported when the test says so."""

    def __init__(self, pool: Pool, log: RequestLog) -> None:
        MetricFamily.told = {}
        self.pool = pool
        self.metrics = Metrics(pool, MetricFamily, log, context_tokens=100)
        self.metrics.stop()

    def open(self, index: int = 0, decoding: str = "card") -> Session:
        request = SlotRequest(np.arange(3), 8, decoding, SamplingParameters())
        session = Session(self.pool.card_slot(index), self.pool.new_session_id(), request)
        session.slot.open(request, session.session_id)
        return session

    def reuse(self, session: Session, decoding: str = "card") -> Session:
        """Close and free the slot, and open it for another."""
        session.slot.close()
        assert session.slot.reclaim(target_is_dead=True)
        self.metrics.ended()
        return self.open(session.slot.index, decoding)

    def told(self, name: str, *labels: str) -> list[float]:
        self.metrics.export()
        return MetricFamily.told[name, tuple(sorted(labels))]

    def total(self, name: str, *labels: str) -> float:
        return sum(self.told(name, *labels))


@pytest.fixture
def scene(pool: Pool) -> Scene:
    return Scene(pool, RequestLog("card", ObservabilitySettings()))


def step(pool: Pool, session: Session, tokens: int, drafted: int = 4) -> None:
    slot = pool.target_slot(session.slot.index)
    slot.adopt(session.session_id)
    slot.count_query(hit=True)
    slot.count_step(tokens, tokens - 1, drafted, rejected=tokens - 1 < drafted)
    slot.commit([1] * tokens, [False] * tokens, [0.0] * tokens, Finish.RUNNING)


def publish(pool: Pool, session: Session) -> None:
    """What a draft does when it takes a session up."""
    slot = pool.draft_slot(session.slot.index)
    slot.reset_counters()
    nothing = np.empty(0, np.int64)
    slot.replace(session.session_id, 3, nothing, nothing, np.empty(0))


def test_a_new_session_does_not_inherit_what_was_counted_before_it_was_taken_up(
    scene: Scene,
) -> None:
    session = scene.open()
    step(scene.pool, session, 5)
    publish(scene.pool, session)
    scene.pool.draft_slot(0).count_re_root(restarted=True)
    scene.reuse(session, "autoregressive")  # which no draft ever follows
    assert scene.total("card_committed_tokens_total", "autoregressive") == 0
    assert scene.total("card_restarts_total", "autoregressive") == 0
    assert scene.total("card_restarts_total", "card") == 1


def test_a_reloaded_draft_counts_anew_and_nothing_is_taken_back(scene: Scene) -> None:
    session = scene.open()
    publish(scene.pool, session)
    slot = scene.pool.draft_slot(0)
    for _ in range(3):
        slot.count_re_root(restarted=False)
    assert scene.total("card_re_roots_total", "card") == 3
    publish(scene.pool, session)
    slot.count_re_root(restarted=False)
    assert scene.total("card_re_roots_total", "card") == 4


def test_ledger_when_an_earlier_card_left_counts_ignores_them(pool: Pool) -> None:
    request = slot_request()
    session = Session(pool.card_slot(0), pool.new_session_id(), request)
    session.slot.open(request, session.session_id)
    step(pool, session, 4)
    assert ProgressReader(pool).read() == {}


def test_ways_when_passes_were_counted_show_their_speed_and_share(scene: Scene) -> None:
    assert scene.told("card_way_tokens_per_second", "turns") == [0]
    scene.pool.count_way("alone", 1, 0.01)
    scene.pool.count_way("turns", 3, 0.03)
    scene.pool.count_way("turns", 3, 0.01)
    assert scene.told("card_way_tokens_per_second", "alone") == [100]
    assert scene.told("card_way_tokens_per_second", "turns") == [pytest.approx(150, rel=0.01)]
    assert scene.told("card_way_tokens_per_second", "beside") == [0]
    assert scene.told("card_way_share", "turns") == [pytest.approx(0.8, rel=0.01)]


# --- what the log says of requests ---------------------------------------------------------------


THREE_SLOTS = Geometry(slots=3, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16)
WORDS = st.one_of(
    st.sampled_from([0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 62)]), st.integers(0, 99)
)


@settings(max_examples=40)
@given(
    st.lists(st.lists(WORDS, min_size=THREE_SLOTS.slots, max_size=THREE_SLOTS.slots), max_size=6)
)
def test_garbage_in_the_drafts_counters_never_decreases_a_metric(looks: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool.create(Path(folder), 1, THREE_SLOTS)
        pool.slots["session_id"] = pool.slots["commit_session_id"] = [7, 8, 9]
        pool.slots["tree_session_id"] = [[7, 7], [8, 8], [9, 9]]
        pool.slots["pacing"] = choice_words("card")
        reader = ProgressReader(pool)
        for words in looks:
            for name in DRAFT_COUNTERS:
                pool.slots[name] = words
            for progress in reader.read().values():
                assert min(progress.counters.values()) >= 0
        pool.close()
