"""What the supervisor hears of its engines and says of itself: nothing rosier than it is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from told_clock import ToldClock

from card.serving.supervision.health import (
    STALLED_S,
    STATES,
    GuardHealth,
    HealthServer,
    ModelHealth,
    ServiceHealth,
    state_of,
)
from card.serving.supervision.states import CARD, DRAFT, REMOTE, STUBS, TARGET


@pytest.fixture
def health(clock: ToldClock) -> Iterator[HealthServer]:
    server = HealthServer("127.0.0.1", 0, clock)
    yield server
    server.close()


def get(health: HealthServer, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{health.port}{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("state", "status"),
    [("starting", 503), ("ready", 200), ("degraded", 200), ("unready", 503), ("draining", 503)],
)
def test_only_a_service_that_would_answer_is_ready(
    health: HealthServer, state: str, status: int
) -> None:
    health.publish(ServiceHealth(state, 7, 1, {"draft": ModelHealth("gone", reloads=2)}))
    code, detail = get(health, "/ready")
    assert code == status
    assert detail == {
        "ready": status == 200,
        "state": state,
        "server_pid": 7,
        "server_restarts": 1,
        "models": {"draft": {"state": "gone", "pid": None, "reloads": 2, "loading": None}},
        "guard": None,
        "guard_restarts": 0,
    }
    assert get(health, "/live")[0] == 200


def test_a_supervisor_that_looks_no_more_is_neither_live_nor_ready(
    health: HealthServer, clock: ToldClock
) -> None:
    health.publish(ServiceHealth("ready"))
    clock.now_s += STALLED_S
    assert get(health, "/live")[0] == get(health, "/ready")[0] == 200
    assert figures(health)["card_service_ready", ""] == 1
    clock.now_s += 0.1
    assert get(health, "/live")[0] == get(health, "/ready")[0] == 503
    assert figures(health)["card_service_ready", ""] == 0


def figures(health: HealthServer) -> dict[tuple[str, str], float]:
    """(metric, its label's value) -> value, as Prometheus reads them."""
    url = f"http://127.0.0.1:{health.port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page = answer.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_prometheus_reads_states_recoveries_and_processes(health: HealthServer) -> None:
    models = {"draft": ModelHealth("gone", reloads=2), "target": ModelHealth("well", os.getpid())}
    guard = GuardHealth("well", os.getpid())
    health.publish(ServiceHealth("degraded", None, 1, models, guard, guard_restarts=3))
    told = figures(health)
    assert told["card_service_ready", ""] == 1
    assert {state: told["card_service_state", state] for state in STATES} == {
        **dict.fromkeys(STATES, 0.0),
        "degraded": 1.0,
    }
    assert (told["card_model_well", "draft"], told["card_model_well", "target"]) == (0, 1)
    assert told["card_model_reloads_total", "draft"] == 2
    assert told["card_server_restarts_total", ""] == 1
    assert told["card_guard_restarts_total", ""] == 3
    for process in ("supervisor", "target", "guard"):
        assert told["card_process_resident_memory_bytes", process] > 1 << 20
        assert told["card_process_open_files", process] > 2
    assert ("card_process_open_files", "draft") not in told


def test_connections_that_say_nothing_keep_no_probe_out(health: HealthServer) -> None:
    health.publish(ServiceHealth("ready"))
    with contextlib.ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(socket.create_connection(("127.0.0.1", health.port)))
        assert get(health, "/live")[0] == 200
        assert threading.active_count() < 100


WELL_GUARD = GuardHealth("well", 7)


def states(**of: str) -> dict[str, ModelHealth]:
    return {model: ModelHealth(of.get(model, "well")) for model in STUBS}


@pytest.mark.parametrize(
    ("answers", "models", "guard", "state"),
    [
        (True, {}, None, "ready"),
        (True, {}, WELL_GUARD, "ready"),
        (True, {DRAFT: "gone"}, WELL_GUARD, "degraded"),
        (True, {DRAFT: "recovering"}, None, "degraded"),
        (True, {REMOTE: "gone"}, None, "degraded"),
        (True, {TARGET: "silent"}, None, "unready"),
        (True, {DRAFT: "gone", CARD: "stopped"}, None, "unready"),
        (True, {}, GuardHealth("gone", 7), "unready"),
        (True, {DRAFT: "gone"}, GuardHealth("gone", 7), "unready"),
        (False, {}, None, "unready"),
        (False, {DRAFT: "gone"}, WELL_GUARD, "unready"),
    ],
)
def test_only_losing_what_drafts_leaves_a_service_that_answers(
    answers: bool, models: dict[str, str], guard: GuardHealth | None, state: str
) -> None:
    assert state in STATES
    assert state_of(answers, states(**models), guard) == state
