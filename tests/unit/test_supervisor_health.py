"""Liveness and readiness say what the supervisor sees, and nothing rosier."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from card.serving.supervision.health import (
    STALLED_S,
    HealthServer,
    ModelHealth,
    ServiceHealth,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Iterator[HealthServer]:
    server = HealthServer("127.0.0.1", 0, clock)
    yield server
    server.close()


def get(health: HealthServer, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{health.port}{path}", timeout=5) as answer:
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
        "models": {"draft": {"state": "gone", "pid": None, "reloads": 2}},
    }
    assert get(health, "/live")[0] == 200


def test_a_supervisor_that_looks_no_more_is_neither_live_nor_ready(
    health: HealthServer, clock: Clock
) -> None:
    health.publish(ServiceHealth("ready"))
    clock.now_s += STALLED_S
    assert get(health, "/live")[0] == get(health, "/ready")[0] == 200
    clock.now_s += 0.1
    assert get(health, "/live")[0] == get(health, "/ready")[0] == 503


def test_a_wrong_path_says_which_there_are(health: HealthServer) -> None:
    code, detail = get(health, "/healthz")
    assert code == 404
    assert detail == {"error": "/healthz is unknown; allowed: /live, /ready"}


def test_a_taken_port_is_refused(health: HealthServer) -> None:
    with pytest.raises(OSError, match="in use"):
        HealthServer("127.0.0.1", health.port)
