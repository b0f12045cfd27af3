"""A supervisor over a server that is none: what it does where a machine has no process to spare,
and once it is to stop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from real_pair import PAIR
from told_clock import ToldClock

from card.serving.supervision.supervisor import LOOK_S, StopRequests, Supervisor
from card.serving.supervision.watch import ProcessState, ServerSight, Sight
from card.settings import Settings, load_settings
from loading.supervised import reserved_ports


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Settings]:
    file = tmp_path / "settings.yaml"
    binary = tmp_path / "opt/bin/tritonserver"
    stub = tmp_path / "opt/backends/python/triton_python_backend_stub"
    for program in (binary, stub):
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    with reserved_ports(1) as (port,):
        file.write_text(
            f"cache: {{directory: {tmp_path}}}\n"
            f"serving: {{guard: true, tritonserver: {binary}, health_port: {port}}}"
        )
        yield load_settings(file, **{role: {"path": PAIR / role} for role in ("target", "draft")})


class FakeService:
    """Ready at once, and then asked to stop; each look at it takes a moment on the clock."""

    stubs = ()
    guard = None
    is_retired = False
    guard_health = None
    ensemble_ready = True
    server = SimpleNamespace(pid=1, state=ProcessState.RUNNING)
    server_sight = ServerSight(ProcessState.RUNNING)

    def __init__(self, open_slots: int, idle: bool, again: bool) -> None:
        self.open_slots = open_slots
        self.stop, self.clock = StopRequests(), ToldClock()
        self.looks = 0
        self._idle = idle
        self._again = again

    def is_complete(self) -> bool:
        return True

    def sights(self) -> dict[str, Sight]:
        self.clock.now_s += LOOK_S
        self.looks += 1
        return {}

    def conceal_header(self) -> bool:
        self.stop.ask()
        return True

    def refuse(self) -> None:
        self.looks = 0
        if self._again:
            self.stop.ask()

    def retire(self) -> None:
        assert self.looks, "the last responses may not have left"

    def is_idle(self) -> bool:
        return self._idle

    def reload(self, model: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("service", "told"),
    [
        (FakeService(0, idle=True, again=False), []),
        (FakeService(1, idle=True, again=False), [("cut_off", "the drain limit is reached")]),
        (FakeService(1, idle=True, again=True), [("cut_off", "there was another signal to stop")]),
        (
            FakeService(0, idle=False, again=False),
            [("not_idle", "no session for 2 s, yet Triton holds a model")],
        ),
    ],
    ids=["all are answered", "a long text", "a second signal", "a client that left"],
)
def test_a_service_that_is_to_stop_waits_for_what_is_open_and_not_for_ever(
    guarded: Settings,
    caplog: pytest.LogCaptureFixture,
    service: Any,
    told: list[tuple[str, str]],
) -> None:
    serving = guarded.serving.model_copy(update={"drain_s": 3.0})
    settings = guarded.model_copy(update={"serving": serving})
    with caplog.at_level(logging.INFO, "card"):
        Supervisor(
            settings, Path(), service.stop, service.clock, lambda *_: service, look_s=0.0
        ).run()
    events = [
        (record.msg, getattr(record, "fields", {}).get("reason")) for record in caplog.records
    ]
    assert [event for event in events if event[0] in ("cut_off", "not_idle")] == told
