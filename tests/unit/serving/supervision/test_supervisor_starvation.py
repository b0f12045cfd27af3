"""Which part of a silence counts: told threads on a told clock, and a real process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from told_clock import ToldClock

from card.serving.supervision.starvation import (
    MOST_TIMES,
    UNNOTED_S,
    Starvation,
    Thread,
    threads_of,
)

PID = 4711
LOOK_S = 0.1


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
        return self._starvation.of(PID, self.silence_s)

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
    ids=["it sleeps or is stopped", "it spins on a quiet machine", "its waits have ended"],
)
def test_what_a_process_waited_for_a_processor_is_taken_off_its_silence(
    scene: Scene, ran_s: float, waited_s: float, is_ready: bool, starved_s: float
) -> None:
    found = scene.pass_time(5.0, ran_s=ran_s, waited_s=waited_s, is_ready=is_ready)
    assert found == pytest.approx(starved_s, abs=UNNOTED_S if starved_s else 1.001 * LOOK_S)


def test_a_wait_that_lasts_counts_while_it_lasts_and_not_again_at_its_end(scene: Scene) -> None:
    """The kernel counts it only then, and at low priority it may last for seconds."""
    starved_s = scene.pass_time(2.0, is_ready=True)
    assert starved_s == pytest.approx(2.0, abs=UNNOTED_S + LOOK_S)
    assert scene.pass_time(LOOK_S, ran_s=0.01, waited_s=2.0) - starved_s <= 1.001 * LOOK_S


def test_a_process_that_spins_for_ever_on_a_busy_machine_is_found_too(scene: Scene) -> None:
    starved_s = scene.pass_time(100.0, ran_s=0.001, waited_s=LOOK_S)
    assert scene.silence_s - starved_s == pytest.approx(scene.silence_s / MOST_TIMES)


def test_a_silence_owes_nothing_to_the_one_before_it(scene: Scene) -> None:
    assert scene.pass_time(5.0, is_ready=True) > 4.0
    scene.silence_s = 0.0
    assert scene.pass_time(5.0) <= 1.001 * LOOK_S


def test_a_look_that_comes_late_blames_nobody_for_what_it_missed(scene: Scene) -> None:
    assert scene.look(after_s=4.0) == pytest.approx(4.0 * (1 - 1 / MOST_TIMES))
    assert scene.pass_time(2.0) == pytest.approx(4.0 - UNNOTED_S)


def test_where_the_kernel_does_not_tell_every_silence_counts(scene: Scene) -> None:
    scene.threads.clear()
    assert scene.look(after_s=5.0) == scene.look() == 0.0


def test_threads_that_come_and_go_break_nothing(scene: Scene) -> None:
    scene.look(after_s=UNNOTED_S + LOOK_S)
    scene.threads = {3: Thread(1, 10**12, is_ready=True)}
    assert scene.look() == pytest.approx(LOOK_S)


def test_the_kernel_tells_of_each_thread_of_a_real_process() -> None:
    """It asks for the processor again and again, and says so once it has two threads."""
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
        spins = process.pid
        while (now := threads_of(process.pid))[spins].ran_ns == first[spins].ran_ns:
            pass
        assert now[spins].is_ready
        assert now[spins].waited_ns >= first[spins].waited_ns
        process.stdin.close()
    assert threads_of(process.pid) == {}
