"""What counts as lost: sights and a told clock, and threads as the kernel tells of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from told_clock import ToldClock

from card.serving.supervision.states import ANSWERS_CLIENTS, STUBS
from card.serving.supervision.watch import (
    CLOSED_S,
    MOST_STOPPED_S,
    MOST_TIMES,
    SERVER_SILENCE_S,
    UNNOTED_S,
    ProcessState,
    ServerSight,
    Sight,
    Starvation,
    Thread,
    Watch,
    threads_of,
)

ENGINE_TIMEOUT_S, LOAD_TIMEOUT_S, LOOK_S = 2.0, 100.0, 0.1
RUNNING, STOPPED, GONE = ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.GONE


class Looking:
    """A watch that looks ten times a second on a clock of its own, and has for a while."""

    def __init__(self) -> None:
        self.watch = Watch(engine_timeout_s=ENGINE_TIMEOUT_S, load_timeout_s=LOAD_TIMEOUT_S)
        self.now_s = 1000.0
        for _ in range(30):
            self.look("draft", Sight(RUNNING))

    def look(self, model: str, sight: Sight) -> str | None:
        self.now_s += LOOK_S
        self.watch.look(self.now_s)
        return self.watch.model(model, sight)

    def server(self, sight: ServerSight, card: Sight | None = None) -> str | None:
        self.now_s += LOOK_S
        self.watch.look(self.now_s)
        return self.watch.server(sight, card)

    def looks_until_lost(self, model: str, sight: Sight) -> int:
        """How many looks pass without complaint."""
        looks = 0
        while self.look(model, sight) is None:
            looks += 1
            assert looks < 10 * LOAD_TIMEOUT_S + 10, "it is never lost"
        return looks


@pytest.fixture
def looking() -> Looking:
    return Looking()


@pytest.mark.parametrize("model", STUBS)
def test_a_model_is_lost_when_it_was_stopped_for_too_long(looking: Looking, model: str) -> None:
    """Later Triton would give up on one that answers clients, and mix up their texts."""
    limit_s = MOST_STOPPED_S if model in ANSWERS_CLIENTS else ENGINE_TIMEOUT_S
    assert looking.looks_until_lost(model, Sight(STOPPED)) == pytest.approx(10 * limit_s, abs=2)


@pytest.mark.parametrize("engine", ["draft", "target"])
def test_an_engine_is_lost_when_its_silence_is_not_the_machines(
    looking: Looking, engine: str
) -> None:
    assert looking.look(engine, Sight(RUNNING, ENGINE_TIMEOUT_S)) is None
    assert looking.look(engine, Sight(RUNNING, 9.0, starved_s=9.0 - ENGINE_TIMEOUT_S)) is None
    lost = looking.look(engine, Sight(RUNNING, 9.0, starved_s=6.5))
    assert lost == "no heartbeat for 9.0 s, starved for 6.5 s of them"


@pytest.mark.parametrize(
    ("sight", "limit_s"),
    [
        (ServerSight(GONE), 0.0),
        (ServerSight(STOPPED), ENGINE_TIMEOUT_S),
        (ServerSight(RUNNING, listens=False), CLOSED_S),
        (ServerSight(RUNNING, SERVER_SILENCE_S + 0.1), 0.0),
    ],
    ids=["gone", "stopped", "closed", "silent"],
)
def test_a_server_is_lost_when_it_is_away_for_too_long(
    looking: Looking, sight: ServerSight, limit_s: float
) -> None:
    well = ServerSight(RUNNING, SERVER_SILENCE_S)
    assert looking.server(well) is None
    lost_at = [looking.server(sight) is not None for _ in range(30)].index(True)
    assert lost_at == pytest.approx(10 * limit_s, abs=2)
    assert looking.server(well) is None


@pytest.mark.parametrize("sight", [Sight(STOPPED), Sight(RUNNING, 60.0)], ids=str)
def test_every_process_may_speak_again_when_the_machine_was_suspended(
    looking: Looking, sight: Sight
) -> None:
    assert looking.look("target", Sight(STOPPED)) is None
    looking.now_s += 60.0
    looks = looking.looks_until_lost("target", sight)
    assert looks == pytest.approx(10 * ENGINE_TIMEOUT_S, abs=2)
    looking.now_s += 60.0
    assert looking.server(ServerSight(RUNNING, 60.0), Sight(RUNNING, 60.0)) is None
    looking.now_s += 60.0
    assert looking.look("draft", Sight(GONE)) is not None, "a dead process is dead"


class Scene:
    """A process that has just beaten and is looked at as the supervisor looks."""

    def __init__(self, clock: ToldClock) -> None:
        self.threads = {1: Thread(10**9, 0, is_ready=False), 2: Thread(10**9, 0, is_ready=False)}
        self.silence_s = 0.0
        self._clock = clock
        self._starvation = Starvation(lambda pid: dict(self.threads), clock)

    def look(self, after_s: float = LOOK_S) -> float:
        self._clock.now_s += after_s
        self.silence_s += after_s
        return self._starvation.of(4711, self.silence_s)

    def pass_time(
        self, seconds: float, *, ran_s: float = 0.0, waited_s: float = 0.0, is_ready: bool = False
    ) -> float:
        """In looks, between which the second thread ran and waited so long."""
        for _ in range(round(seconds / LOOK_S)):
            thread = self.threads[2]
            self.threads[2] = Thread(
                thread.ran_ns + int(ran_s * 1e9), thread.waited_ns + int(waited_s * 1e9), is_ready
            )
            starved_s = self.look()
        return starved_s


@pytest.fixture
def scene(clock: ToldClock) -> Scene:
    return Scene(clock)


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "is_ready", "starved_s"),
    [(0.0, 0.0, False, 0.0), (LOOK_S, 0.0, True, 0.0), (0.02, 0.08, False, 0.8 * 5.0)],
    ids=["sleeps", "spins on a quiet machine", "waited"],
)
def test_only_waiting_for_a_processor_excuses_a_silence(
    scene: Scene, ran_s: float, waited_s: float, is_ready: bool, starved_s: float
) -> None:
    found = scene.pass_time(5.0, ran_s=ran_s, waited_s=waited_s, is_ready=is_ready)
    assert found == pytest.approx(starved_s, abs=UNNOTED_S if starved_s else 1.001 * LOOK_S)


def test_a_process_that_spins_for_ever_is_found_when_the_machine_is_busy(scene: Scene) -> None:
    starved_s = scene.pass_time(100.0, ran_s=0.001, waited_s=LOOK_S)
    assert scene.silence_s - starved_s == pytest.approx(scene.silence_s / MOST_TIMES)


def test_the_kernel_tells_of_each_thread_of_a_real_process() -> None:
    program = (
        "import threading; threading.Thread(target=input).start(); print(flush=True)\n"
        "while threading.active_count() > 1: pass"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        first = threads_of(process.pid)
        assert len(first) == 2
        while (now := threads_of(process.pid))[process.pid].ran_ns == first[process.pid].ran_ns:
            pass
        assert now[process.pid].is_ready
        process.stdin.close()
    assert threads_of(process.pid) == {}


def test_a_stop_is_forgotten_when_the_model_goes_on_in_time(looking: Looking) -> None:
    for _ in range(10):
        assert looking.look("card", Sight(STOPPED)) is None
        assert looking.look("card", Sight(RUNNING)) is None
