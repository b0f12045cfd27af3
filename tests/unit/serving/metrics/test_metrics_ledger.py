"""What is counted, from a pool played by hand to what Triton is told."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_double import GEOMETRY, slot_request

from card.cache import DRAFT_COUNTERS, Finish, Geometry, Pool, SlotRequest, choice_words
from card.sampling import SamplingParameters
from card.serving.log import RequestLog
from card.serving.metrics import Metrics
from card.serving.metrics.ledger import ProgressReader
from card.serving.requests.refusal import REASONS, Refusal, invalid
from card.serving.requests.sessions import Session
from card.settings import ObservabilitySettings

SECRET = "the prompt that nobody may read"


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


def test_counters_are_told_while_the_session_runs(scene: Scene) -> None:
    session = scene.open()
    step(scene.pool, session, 3)
    assert scene.total("card_committed_tokens_total", "card") == 3
    step(scene.pool, session, 1)
    assert scene.total("card_committed_tokens_total", "card") == 4
    assert scene.total("card_drafted_tokens_total", "card") == 8
    assert scene.total("card_accepted_tokens_total", "card") == 2
    assert scene.total("card_corrections_total", "card") == 2
    assert scene.total("card_query_hits_total", "card") == 2
    assert scene.told("card_tokens_per_step", "card") == [3.0, 1.0]
    assert scene.total("card_committed_tokens_total", "autoregressive") == 0


def test_accepted_candidates_are_told_by_their_place_behind_the_text(scene: Scene) -> None:
    session = scene.open()
    step(scene.pool, session, 3)
    step(scene.pool, session, 2)
    step(scene.pool, session, 1, drafted=0)
    assert scene.total("card_drafts_total", "card") == 2
    told = [scene.total("card_accepted_at_total", str(place)) for place in range(3)]
    assert told == [2, 1, 0]


def test_kv_blocks_are_those_of_open_sessions(scene: Scene) -> None:
    """Blocks of 32 tokens; the prompts have 3 tokens and the context has 100."""
    assert scene.told("card_kv_blocks") == [4 * GEOMETRY.slots]
    session = scene.open(0)
    scene.open(1)
    assert scene.told("card_kv_blocks_in_use") == [2]
    slot = scene.pool.target_slot(0)
    slot.adopt(session.session_id)
    scene.pool.slots["prompt_length"][0] = 30
    slot.commit([1] * 3, [False] * 3, [0.0] * 3, Finish.RUNNING)
    assert scene.told("card_kv_blocks_in_use") == [3]
    session.slot.close()
    assert scene.told("card_kv_blocks_in_use") == [1]


def test_a_session_that_ends_between_two_exports_is_counted_in_full(scene: Scene) -> None:
    session = scene.open()
    for tokens in (2, 3):
        step(scene.pool, session, tokens)
        session = scene.reuse(session, "autoregressive")
    step(scene.pool, session, 1)
    assert scene.total("card_committed_tokens_total", "card") == 2
    assert scene.total("card_committed_tokens_total", "autoregressive") == 4


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


def test_what_an_earlier_card_left_in_the_pool_counts_for_nobody(pool: Pool) -> None:
    request = slot_request()
    session = Session(pool.card_slot(0), pool.new_session_id(), request)
    session.slot.open(request, session.session_id)
    step(pool, session, 4)
    assert ProgressReader(pool).read() == {}


def test_latencies_are_those_of_the_request(scene: Scene) -> None:
    session = scene.open()
    arrival_ns = time.monotonic_ns()
    second = 10**9
    scene.metrics.admitted(session, arrival_ns, "abc", None)
    for tokens, at in ((0, 1), (1, 2), (3, 4), (1, 5)):
        scene.metrics.committed(session, tokens, arrival_ns + at * second)
    scene.metrics.answered(session, "length")
    assert scene.told("card_time_to_first_token_seconds", "card") == [2.0]
    assert scene.told("card_inter_token_latency_seconds", "card") == [2.0, 1.0]
    assert scene.told("card_time_per_output_token_seconds", "card") == [0.75]
    assert scene.total("card_requests_total", "card", "length") == 1
    (queued,) = scene.told("card_queue_time_seconds", "card")
    assert 0 <= queued < 1


def test_refusals_of_all_models_are_counted_by_reason(scene: Scene) -> None:
    full = Refusal("UNAVAILABLE", "full", reason="queue_full")
    scene.metrics.rejected(full, "abc", None)
    scene.metrics.rejected(Refusal("CANCELLED", "left"), "abc", None)
    scene.pool.count_refusal(REASONS.index("invalid_argument"))
    for engine in ("draft", "target", "target"):
        scene.pool.count_denial(engine)
    told = {reason: scene.total("card_rejections_total", reason) for reason in REASONS}
    assert {reason: count for reason, count in told.items() if count} == {
        "queue_full": 1, "cancelled": 1, "invalid_argument": 1, "permission_denied": 3,
    }  # fmt: skip


def test_gauges_say_what_holds_now(scene: Scene) -> None:
    scene.open(0)
    scene.open(1, "draft_then_verify")
    scene.metrics.occupancy(2, 5)
    scene.metrics.engine_up("draft", True)
    assert scene.told("card_slots") == [GEOMETRY.slots]
    assert scene.told("card_slots_in_use") == [2]
    assert scene.told("card_queued_requests") == [5]
    assert scene.told("card_open_sessions", "card") == [1]
    assert scene.told("card_open_sessions", "autoregressive") == [0]
    assert scene.told("card_engine_up", "draft") == [1]
    assert scene.told("card_engine_silence_seconds", "target") == [-1]
    assert scene.told("card_draft_rests") == [0]
    scene.pool.stop_draft(stopped=True)
    assert scene.told("card_draft_rests") == [1]


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


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("wanted", [True, False])
def test_settings_decide_what_is_said_of_requests(
    capsys: pytest.CaptureFixture[str], wanted: bool
) -> None:
    settings = ObservabilitySettings(log_format="json", log_prompts=True, log_requests=wanted)
    log = RequestLog("card", settings)
    log.answered("abc", SECRET, tokens=2)
    log.refused(invalid("stop_words", "x", "y"), "abc", SECRET)
    assert [event["prompt"] for event in events(capsys)] == [SECRET, SECRET] * wanted


THREE_SLOTS = Geometry(slots=3, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16)
WORDS = st.one_of(
    st.sampled_from([0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 62)]), st.integers(0, 99)
)


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
