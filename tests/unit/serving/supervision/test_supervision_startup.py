"""A start that comes to nothing is given up, with the reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from told_clock import ToldClock

from card.serving.supervision.startup import StartError, Startup
from card.serving.supervision.states import DRAFT, STUBS, TARGET
from card.serving.supervision.watch import ProcessState


class FakeServer:
    def __init__(self) -> None:
        self.state = ProcessState.RUNNING
        self.code = 1
        self.ending = "exit code 1"
        self.seen: list[str] = [*STUBS]
        self.stub_state = ProcessState.RUNNING

    def stub(self, model: str) -> SimpleNamespace | None:
        """A process, if one was seen."""
        process = SimpleNamespace(pid=STUBS.index(model))
        found = SimpleNamespace(state=self.stub_state, process=process)
        return found if model in self.seen else None


class FakeService:
    """A service that starts; tests set what is wrong with it."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.stubs = STUBS
        self.load_failure = ""
        self.guard: SimpleNamespace | None = None
        self.conditions = dict.fromkeys(STUBS, "well")
        self.engines_are_loaded = self.ensemble_ready = False

    def ills(self) -> dict[str, str]:
        guard = {} if self.guard is None else {"guard": self.guard.condition}
        seen = {**self.conditions, **guard}
        return {name: condition for name, condition in seen.items() if condition != "well"}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


def started(service: FakeService, limit_s: float = 60.0, clock: ToldClock | None = None) -> Startup:
    return Startup(service, limit_s, clock or ToldClock())  # type: ignore[arg-type]


def test_a_server_that_waits_for_a_process_it_gave_up_on_is_started_again(
    service: FakeService, clock: ToldClock
) -> None:
    startup = started(service, limit_s=600.0, clock=clock)
    for now, loaded, ready in (
        (100.0, False, False),
        (130.0, True, False),
        (155.0, True, False),
        (165.0, True, True),  # Triton waits for no process
        (200.0, True, False),
        (225.0, True, False),
    ):
        clock.now_s, service.engines_are_loaded, service.ensemble_ready = now, loaded, ready
        startup.check()
    clock.now_s = 231.0
    with pytest.raises(StartError, match="given up on a process") as refusal:
        startup.check()
    assert refusal.value.transient


def test_time_that_an_engine_waits_for_a_processor_is_no_part_of_its_start(
    service: FakeService, clock: ToldClock
) -> None:
    starved_s = {STUBS.index(DRAFT): 1.0, STUBS.index(TARGET): 20.0}
    told = SimpleNamespace(of=lambda pid, silence_s: starved_s[pid])
    startup = Startup(service, 5.0, clock, lambda: told)  # type: ignore[arg-type, return-value]
    clock.now_s = 24.9
    startup.check()
    clock.now_s = 25.1
    with pytest.raises(StartError, match="load_timeout_s = 5 s"):
        startup.check()
