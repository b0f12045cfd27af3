"""One model's recovery: killed, unloaded, loaded, seen well again."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import psutil

from card.serving.supervision.policy import ProcessState, lasted_s
from card.serving.supervision.repository import Repository, RepositoryError
from card.serving.supervision.residue import remove_region
from card.serving.supervision.server import TritonProcess
from card.serving.supervision.stubs import Stub, kill

Clock = Callable[[], float]

_LOOK_S = 0.02
_LET_GO_S = 2.0
"""Triton fails what it had queued for a dead process within a second, if it does at all."""
STUCK_S = 3.0
"""A model whose process has not run for so long while Triton loads it will never be loaded."""
_LOST_S = 0.5
"""Nor will a loaded one whose process has not run for so long come to serve."""
_PAUSED_S = 0.5
"""Triton gives up on a process that does not answer for a second while it loads its model, and then
waits for the end of it: one that was only paused and goes on would be waited for for ever."""


class RecoveryError(RuntimeError):
    """The model is not back; the message says at which step it failed."""


class BeyondReloadError(RecoveryError):
    """Only a new server helps."""


class StuckLoadError(BeyondReloadError):
    """Triton waits for a process that is gone, whatever it is told: it loads this model no more."""


class LostRequestsError(BeyondReloadError):
    """Triton waits for answers of a process that is gone, and so do clients."""


class LoadWatch:
    """Tells whether Triton waits in vain for the process of a model that it loads, or does not run.

    A process that dies (or is stopped) while it loads its model may leave Triton waiting for ever.

    limit_s  how long it may be away
    """

    def __init__(
        self, server: TritonProcess, limit_s: float = STUCK_S, clock: Clock = time.monotonic
    ) -> None:
        self._server = server
        self._limit_s = limit_s
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def is_stuck(self, model: str) -> bool:
        """Whether the last known process of `model` has not run for a while, look after look."""
        stub = self._server.stub(model)
        away = stub is not None and stub.state is not ProcessState.RUNNING
        return self._lasted_s(model, away) > self._limit_s

    def end_paused(self, model: str) -> None:
        """Kill the process of `model` if it has been stopped for a moment, look after look."""
        stub = self._server.stub(model)
        stopped = stub is not None and stub.state is ProcessState.STOPPED
        if self._lasted_s(f"{model} stopped", stopped) > _PAUSED_S and stub is not None:
            with suppress(psutil.NoSuchProcess):
                stub.process.kill()

    def is_server_stopped(self) -> bool:
        """Whether the server itself has been stopped for a while, look after look."""
        stopped = self._server.state is ProcessState.STOPPED
        return self._lasted_s("", stopped) > self._limit_s

    def _lasted_s(self, condition: str, holds: bool) -> float:
        return lasted_s(self._since_s, condition, holds, self._clock())


def reload_model(
    model: str,
    dead: Stub | None,
    server: TritonProcess,
    repository: Repository,
    is_well: Callable[[], bool],
    timeout_s: float,
    *,
    must_let_go: bool = False,
    clock: Clock = time.monotonic,
) -> None:
    """Bring `model` back within `timeout_s`; runs in a thread of its own.

    `dead` is the last known process. It is killed first, whatever its state: a stopped process
    that goes on after a request was sent to it would abort the whole server. `is_well` tells
    whether the new one takes part in serving. With `must_let_go` no request may be open in the old
    one. Raises `RecoveryError`.
    """
    deadline = clock() + timeout_s
    try:
        if dead is not None:
            kill([dead.process])
        repository.unload(model, timeout_s)
        if must_let_go:
            _see_it_let_go(model, repository, clock)
        _load(model, server, repository, timeout_s, clock)
        watch = LoadWatch(server, _LOST_S, clock)
        while not is_well():
            if server.state is ProcessState.GONE:
                raise RecoveryError("the server ended")
            if watch.is_stuck(model):
                raise RecoveryError("its process was loaded and did not come to serve")
            if clock() > deadline:
                raise RecoveryError(f"loaded, but not serving within {timeout_s:g} s")
            time.sleep(_LOOK_S)
    except (RepositoryError, TimeoutError) as error:
        raise RecoveryError(str(error)) from error
    finally:
        if dead is not None:
            remove_region(dead.region)


def _see_it_let_go(model: str, repository: Repository, clock: Clock) -> None:
    """Wait until Triton has no open request left for the process that is gone."""
    limit_s = clock() + _LET_GO_S
    while not repository.is_unloaded(model):
        if clock() > limit_s:
            raise LostRequestsError("requests were open in its process")
        time.sleep(_LOOK_S)


def _load(
    model: str, server: TritonProcess, repository: Repository, timeout_s: float, clock: Clock
) -> None:
    """Load `model`. Where its process dies meanwhile and Triton does not notice, tell Triton."""
    loading: Future[None] = Future()

    def load() -> None:
        try:
            repository.load(model, timeout_s)
        except RepositoryError as error:
            loading.set_exception(error)
        else:
            loading.set_result(None)

    threading.Thread(target=load, name=f"loading {model}", daemon=True).start()
    watch, told = LoadWatch(server, clock=clock), False
    while True:
        try:
            return loading.result(_LOOK_S)
        except concurrent.futures.TimeoutError:
            watch.end_paused(model)
            if not watch.is_stuck(model):
                continue
            if told:
                raise StuckLoadError("its process did not survive its loading") from None
            server.fail_load(model)
            watch, told = LoadWatch(server, clock=clock), True
