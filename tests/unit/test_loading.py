"""Models load at once and measure one after the other; each phase is told and logged."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path

from card.engines.load_lock import LoadLock
from card.serving.notices import Notices

_SOON_S = 10.0


class Model:
    """Loads in a thread of its own, step by step as it is told."""

    def __init__(self, directory: Path | None, *, measures: bool) -> None:
        self.loads, self.measures = threading.Event(), threading.Event()
        self.may_end = threading.Event()
        self._lock = LoadLock(directory)
        self._wants_to_measure = measures
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def _load(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._lock.loading())
            self.loads.set()
            if self._wants_to_measure:
                self._lock.begin_measuring()
                self.measures.set()
            self.may_end.wait(_SOON_S)

    def end(self) -> None:
        self.may_end.set()
        self._thread.join(_SOON_S)
        assert not self._thread.is_alive()


def test_measurement_when_other_models_load_waits_and_keeps_new_loads_back(tmp_path: Path) -> None:
    loading = Model(tmp_path, measures=False)
    assert loading.loads.wait(_SOON_S)
    measuring = Model(tmp_path, measures=True)
    assert measuring.loads.wait(_SOON_S)
    assert not measuring.measures.wait(0.1), "another one still loads"
    loading.end()
    assert measuring.measures.wait(_SOON_S)
    late = Model(tmp_path, measures=False)
    assert not late.loads.wait(0.1), "another one measures"
    measuring.end()
    assert late.loads.wait(_SOON_S)
    late.end()


def test_two_that_want_to_measure_do_so_one_after_the_other(tmp_path: Path) -> None:
    models = [Model(tmp_path, measures=True) for _ in range(2)]
    for _ in models:
        first = next(m for m in models if m.measures.wait(_SOON_S / 5) and not m.may_end.is_set())
        others = [m for m in models if m is not first and not m.may_end.is_set()]
        assert not any(other.measures.is_set() for other in others)
        first.end()


def test_load_lock_when_a_process_forks_meanwhile_is_not_held_by_the_child(tmp_path: Path) -> None:
    """It shares all that is open, whatever a library forked it for."""
    lives, ends = os.pipe()
    with LoadLock(tmp_path).loading():
        forked = os.fork()
        if forked == 0:
            os.close(ends)
            os.read(lives, 1)
            os._exit(0)
    try:
        measuring = Model(tmp_path, measures=True)
        assert measuring.measures.wait(_SOON_S)
        measuring.end()
    finally:
        os.close(lives)
        os.close(ends)
        os.waitpid(forked, 0)


def test_the_supervisor_reads_the_phase_and_how_long_it_has_lasted(tmp_path: Path) -> None:
    model, supervisor = (Notices(tmp_path).loading["target"] for _ in range(2))
    assert supervisor.phase is None
    model.post("check rows")
    assert supervisor.phase is not None
    phase, seconds = supervisor.phase
    assert phase == "check rows"
    assert seconds > 0
    model.post("")
    assert supervisor.phase is None
