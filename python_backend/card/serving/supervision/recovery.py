"""Recovers models as `states` decides: kills, unloads and loads a lost model, and waits until it
serves again. Reloads run in threads; their ends are events.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import psutil

from card.serving.log import EventLog
from card.serving.supervision.processes import REGIONS, Stub, TritonProcess, kill
from card.serving.supervision.repository import Repository, RepositoryError
from card.serving.supervision.states import CARD, STUBS, Action, Event, Recovery, Repair
from card.serving.supervision.watch import Lasting, ProcessState, ServerSight, Sight, Watch

Clock = Callable[[], float]
LOG = EventLog("supervisor")

_LOOK_S = 0.02
_LET_GO_S = 2.0
"""Triton fails the requests queued for a dead process within a second, or never."""
STUCK_S = 3.0
"""Triton never finishes the load of a model after its process did not run for so long."""
_LOST_S = 0.5
"""A loaded model never comes to serve after its process did not run for so long."""
_PAUSED_S = 0.5
"""Triton gives up on a process that does not answer for a second while it loads its model, and then
waits for the end of that process, for ever if it was only paused and goes on."""


class RecoveryError(RuntimeError):
    """A model was not recovered; the message names the failed step."""


class BeyondReloadError(RecoveryError):
    """Only a restart of the server helps, because Triton waits for a process that is gone."""


class LoadWatch:
    """Detects that Triton waits in vain for the process of a loading model.

    limit_s  longest time without a running process
    """

    def __init__(
        self, server: TritonProcess, limit_s: float = STUCK_S, clock: Clock = time.monotonic
    ) -> None:
        self._server = server
        self._limit_s = limit_s
        self._clock = clock
        self._lasting = Lasting()

    def is_stuck(self, model: str) -> bool:
        """Whether the last known process of `model` has not run for a while, look after look. One
        that has been stopped for a moment is killed."""
        stub, now_s = self._server.stub(model), self._clock()
        state = ProcessState.RUNNING if stub is None else stub.state
        stopped = state is ProcessState.STOPPED
        if self._lasting.seconds(f"{model} stopped", stopped, now_s) > _PAUSED_S and stub:
            with suppress(psutil.NoSuchProcess):
                stub.process.kill()
        away = state is not ProcessState.RUNNING
        return self._lasting.seconds(model, away, now_s) > self._limit_s

    def is_server_stopped(self) -> bool:
        """Whether the server itself has been stopped for a while, look after look."""
        stopped = self._server.state is ProcessState.STOPPED
        return self._lasting.seconds("", stopped, self._clock()) > self._limit_s


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
    """Recover `model` within `timeout_s`; runs in a thread of its own.

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
            (REGIONS / dead.region).unlink(missing_ok=True)


def _see_it_let_go(model: str, repository: Repository, clock: Clock) -> None:
    """Wait until Triton has no open request for the dead process."""
    limit_s = clock() + _LET_GO_S
    while not repository.is_unloaded(model):
        if clock() > limit_s:
            raise BeyondReloadError("requests were open in its process")
        time.sleep(_LOOK_S)


def _load(
    model: str, server: TritonProcess, repository: Repository, timeout_s: float, clock: Clock
) -> None:
    """Load `model`. If its process dies meanwhile and Triton does not notice, end the load."""
    loading: Future[None] = Future()

    def load() -> None:
        try:
            repository.load(model, timeout_s)
        except RepositoryError as error:
            loading.set_exception(error)
        else:
            loading.set_result(None)

    # A thread of its own, which a load that never ends may hold up.
    threading.Thread(target=load, name=f"loading {model}", daemon=True).start()
    watch, told = LoadWatch(server, clock=clock), False
    while True:
        try:
            return loading.result(_LOOK_S)
        except concurrent.futures.TimeoutError:
            if not watch.is_stuck(model):
                continue
            if told:
                raise BeyondReloadError("its process did not survive its loading") from None
            server.fail_load(model)
            watch, told = LoadWatch(server, clock=clock), True


class Healing:
    """The recoveries of the models of one server after another, at most one a model at a time."""

    def __init__(
        self,
        *,
        engine_timeout_s: float,
        load_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._watch = Watch(engine_timeout_s=engine_timeout_s, load_timeout_s=load_timeout_s)
        self._workers = ThreadPoolExecutor(len(STUBS), thread_name_prefix="recovery")
        self._running: dict[str, Future[None]] = {}
        self.begun = dict.fromkeys(STUBS, 0)
        """Number of reloads, by model."""
        self.begin()

    def begin(self) -> None:
        """Reset all recoveries for a new server."""
        self._recoveries = {model: Recovery(model) for model in STUBS}
        self._running.clear()

    def close(self) -> None:
        """Wait for the threads; their server must have ended."""
        self._workers.shutdown()

    def is_reloading(self, model: str) -> bool:
        return self._recoveries[model].is_reloading

    def heal(
        self,
        sights: Mapping[str, Sight],
        server: ServerSight,
        open_slots: int,
        reload: Callable[[str], None],
    ) -> str | None:
        """Judge one look and begin the reloads that it calls for; why the server must restart, if
        it must.

        reload  brings one model back, or raises `RecoveryError`; runs in a thread
        """
        now_s = self._clock()
        self._watch.look(now_s)
        actions = {
            model: self._finished(model, ended, now_s)
            for model, ended in self._running.items()
            if ended.done()
        }
        for model in actions:
            del self._running[model]
        card = None if self.is_reloading(CARD) else sights.get(CARD)
        if reason := self._watch.server(server, card):
            return reason
        for model, sight in sights.items():
            recovery = self._recoveries[model]
            if recovery.state is Repair.AWAITING_CALM and not open_slots:
                actions[model] = recovery.meet(Event.CALM, now_s), "no stream is open any more"
            elif not (recovery.is_reloading or model in actions):
                lost = self._watch.model(model, sight)
                action = recovery.see(lost is not None, sight.streams, now_s)
                streams = f", and {sight.streams} open streams with it" if sight.streams else ""
                actions[model] = action, f"{lost}{streams}"
        for model, (action, reason) in actions.items():
            if action is Action.RESTART_SERVER:
                return f"{model}: {reason}"
            if action is Action.RELOAD:
                LOG.warn("reloading", model=model, reason=reason)
                self._watch.forget(model)
                self.begun[model] += 1
                self._running[model] = self._workers.submit(reload, model)
        return None

    def _finished(self, model: str, ended: Future[None], now_s: float) -> tuple[Action, str]:
        """Handle the end of a reload; returns the action and its reason."""
        recovery = self._recoveries[model]
        try:
            ended.result()
        except RecoveryError as error:
            stuck = isinstance(error, BeyondReloadError)
            action = recovery.meet(Event.STUCK if stuck else Event.FAILED, now_s)
            if recovery.state is Repair.AWAITING_CALM:
                LOG.warn("restart_waits", model=model, reason=error, until="no stream is open")
            elif not stuck:
                LOG.warn("reload_failed", model=model, reason=error)
            return action, f"its recovery failed: {error}"
        LOG.note("recovered", model=model)
        return recovery.meet(Event.BACK, now_s), ""
