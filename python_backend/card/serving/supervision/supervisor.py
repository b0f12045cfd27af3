"""The supervisor: starts the Triton server, watches it, heals it, stops it cleanly."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from card.serving.spare_memory import SpareMemory
from card.serving.supervision.health import HealthServer
from card.serving.supervision.journal import note, warn
from card.serving.supervision.policy import ProcessState, RecoveryPolicy, Sight, stubs_of
from card.serving.supervision.reloads import Reloads
from card.serving.supervision.repository import RepositoryError
from card.serving.supervision.residue import RunDirectory, sweep
from card.serving.supervision.service import Service, http_address
from card.serving.supervision.sighting import GuardHealth, ModelHealth, ServiceHealth, state_of
from card.serving.supervision.startup import CrashError, ShortageError, StartError, Startup
from card.serving.supervision.stop_requests import StopRequests
from card.serving.supervision.triton_server import find_triton
from card.settings import ServingSettings, Settings

LOOK_S = 0.1
"""Pause between two looks around; each takes a millisecond from the engines' cores."""
START_ATTEMPTS = 3
"""Starts in a row that may fail before the supervisor gives up and says so by its exit code."""
CALM_S = 2.0
"""Without an open session for so long, no client waits: Triton takes a second or more to end a
process, and does not finish every request whose client has left or whose process has died."""
LINGER_S = 0.5
"""Without an open session for so long, the last responses have left and nobody waits in a queue."""


class Supervisor:
    """Keeps one service running until it is told to stop."""

    def __init__(
        self,
        settings: Settings,
        model_repository: Path,
        stop_requests: StopRequests,
        clock: Callable[[], float] = time.monotonic,
        start_service: Callable[..., Service] = Service,
        look_s: float = LOOK_S,
    ) -> None:
        """Bind the health port, sweep what dead supervisors left and find the server.

        Raises `OSError` or `TritonNotFoundError` where that is impossible, and leaves nothing.
        """
        self._settings = settings
        self._model_repository = model_repository
        self._stop_requests = stop_requests
        self._clock = clock
        self._start_service = start_service
        self._look_s = look_s
        serving, directory = settings.serving, settings.cache.directory
        self._policy = RecoveryPolicy(
            engine_timeout_s=serving.engine_timeout_s, load_timeout_s=serving.load_timeout_s
        )
        self._reloads = Reloads(self._policy)
        self._spare_memory = SpareMemory()
        self._service: Service | None = None
        self._restarts = 0
        self._guard_restarts = 0
        self._awaits_guard = False
        """Whether one was started again that has not listened yet."""
        for path in sweep(directory):
            note("swept", path=path)
        with ExitStack() as end:
            self._run_directory = RunDirectory(directory)
            end.callback(self._run_directory.close)
            self._health = HealthServer(
                serving.address, serving.health_port, stubs=stubs_of(settings.roles)
            )
            end.callback(self._health.close)
            self._install = find_triton(self._run_directory.path, serving.tritonserver)
            self._end = end.pop_all()

    def run(self) -> None:
        """Start, watch, and drain once asked to stop; asked twice, wait for no open stream.

        Leaves no process and no file behind. Raises `StartError` when the server does not come up,
        or not any more.
        """
        with ExitStack() as end:  # each step is taken even if one before it fails
            end.callback(note, "stopped")
            end.enter_context(self._end)
            end.callback(self._reloads.close)
            end.callback(self._clear)
            if self._stop_requests.wait_for(1, 0.0):
                return
            service = self._start_again_after(CrashError)
            while not self._stop_requests.wait_for(1, self._look_s):
                service = self._look_around(service)
            if service.has_served:
                self._drain(service)

    # --- start and stop -----------------------------------------------------------------------

    def _start(self) -> Service:
        """Start the server and wait until all models serve, or until `stop`."""
        try:
            service = self._service = self._start_service(
                self._settings,
                self._model_repository,
                self._install,
                self._run_directory,
            )
        except OSError as error:
            raise ShortageError(f"the server cannot be started: {error}") from error
        note("starting", server_pid=service.server.pid)
        startup = Startup(service, self._settings.serving.load_timeout_s)
        concealed = False
        while not service.is_complete():
            startup.check()
            self._tend_guard(service)
            concealed = concealed or service.conceal_header()
            self._publish(service, service.sights(), "starting")
            if self._stop_requests.wait_for(1, self._look_s):
                return service
        service.has_served = True
        self._policy.server_started()
        self._publish(service, service.sights())
        if not (concealed or service.conceal_header()):
            warn(
                "header_visible",
                reason="this kernel lets nobody change a command line; see SECURITY.md",
            )
        if meets_strangers(self._settings.serving):
            note(
                "unguarded",
                reason="others than this machine reach what SECURITY.md calls known holes",
            )
        note("ready", seconds=round(startup.seconds, 1), **self._addresses())
        return service

    def _restart(self, reason: str) -> Service:
        warn("restarting_server", reason=reason)
        self._restarts += 1
        self._clear()
        service = self._start_again_after(StartError)
        if service.has_served:
            note("server_recovered", server_pid=service.server.pid)
        return service

    def _start_again_after(self, failure: type[StartError]) -> Service:
        """Start, and after such a failure start anew, a few times."""
        attempt = 1
        while True:
            try:
                return self._start()
            except failure as error:
                if attempt == START_ATTEMPTS:
                    raise
                warn("start_failed", attempt=attempt, reason=error.for_the_log)
                self._stop_requests.wait_for(1, error.pause_s)
            attempt += 1
            self._clear()

    def _drain(self, service: Service) -> None:
        """Refuse new requests and let open ones finish within the drain limit."""
        drain_s = self._settings.serving.drain_s
        note("draining", open_sessions=service.open_slots, limit_s=drain_s)
        busy_s = self._clock()
        limit_s = busy_s + drain_s
        service.refuse()
        while not self._has_ended(service, busy_s):
            now_s = self._clock()
            if open_sessions := service.open_slots:
                busy_s = now_s
            if now_s > limit_s:
                _tell_cut_off(open_sessions, "the drain limit is reached")
                return
            if now_s > busy_s + CALM_S:
                _tell_cut_off(0, f"no session for {CALM_S:g} s, yet Triton holds a model")
                return
            sights = service.sights()
            if self._stop_requests.wait_for(2, self._look_s):
                _tell_cut_off(open_sessions, "there was another signal to stop")
                return
            if reason := self._reloads.heal(service, sights):
                _tell_cut_off(open_sessions, reason)
                return
            self._tend_guard(service)
            self._publish(service, sights, "draining")

    def _has_ended(self, service: Service, busy_s: float) -> bool:
        """Whether a service that refuses has answered everything; `busy_s` is its last session."""
        if service.open_slots or self._clock() - busy_s < LINGER_S:
            return False
        try:
            service.retire()
        except RepositoryError as error:
            warn("not_drained", reason=error)
            return True
        return service.is_idle()

    def _clear(self) -> None:
        """End the server and everything that belongs to it."""
        self._reloads.forget()
        service, self._service = self._service, None
        try:
            if service is not None:
                self._health.publish(
                    ServiceHealth(
                        "unready",
                        server_restarts=self._restarts,
                        guard_restarts=self._guard_restarts,
                    )
                )
                service.close()
            sweep(self._settings.cache.directory)
        except TimeoutError as error:
            raise StartError(f"a process of this service does not end: {error}") from error

    # --- watch --------------------------------------------------------------------------------

    def _look_around(self, service: Service) -> Service:
        """One look at everything, and what follows from it. Returns the service that runs now."""
        if not self._run_directory.path.exists():
            raise StartError(
                f"{self._run_directory.path} was removed while it served, and perhaps all of "
                "this user's shared memory: see RemoveIPC in docs/operations.md"
            )
        self._spare_memory.give_back()  # of tokenizers, which were read before the start
        sights = service.sights()
        if reason := self._reloads.heal(service, sights):
            return self._restart(reason)
        self._tend_guard(service)
        self._publish(service, sights)
        return service

    def _tend_guard(self, service: Service) -> None:
        if (guard := service.guard) is None:
            return
        guard.look()
        try:
            reason = guard.replace()
        except OSError as error:  # this machine has no process or descriptor to spare now
            warn("guard_not_started", reason=error)
            return
        if reason is not None:
            warn("restarting_guard", reason=reason)
            self._guard_restarts += 1
            self._awaits_guard = True
        elif self._awaits_guard and guard.condition == "well":
            note("guard_recovered", guard_pid=guard.pid)
            self._awaits_guard = False

    def _publish(
        self, service: Service, sights: dict[str, Sight], state: str | None = None
    ) -> None:
        """Tell the health port what is seen; `state` overrides what they say."""
        models = {}
        for model, sight in sights.items():
            recovering = self._policy.is_recovering(model)
            stub = service.server.stub(model)
            models[model] = ModelHealth(
                "recovering" if recovering else service.condition(model, sight),
                pid=None if stub is None else stub.process.pid,
                reloads=self._reloads.begun[model],
                loading=service.load_progress(model),
            )
        guard = None
        if service.guard is not None:
            guard = GuardHealth(service.guard.condition, service.guard.pid)
        answers = service.server.state is ProcessState.RUNNING and service.ensemble_ready
        self._health.publish(
            ServiceHealth(
                state or state_of(answers, models, guard),
                service.server.pid,
                self._restarts,
                models,
                guard,
                self._guard_restarts,
            )
        )

    def _addresses(self) -> dict[str, str]:
        serving = self._settings.serving
        return {name: f"{serving.address}:{port}" for name, port in serving.ports.items()}


def meets_strangers(serving: ServingSettings) -> bool:
    """Whether others than this machine may send requests that this version of Triton dies of."""
    open_on = {
        *((http_address(serving),) if serving.http_inference else ()),
        *(() if serving.guard else (serving.address,)),
    }
    return not all(ipaddress.ip_address(address).is_loopback for address in open_on)


def _tell_cut_off(open_sessions: int, reason: str) -> None:
    """Why a drain ends before Triton has let go of every model; with nothing open that harms
    nobody."""
    if open_sessions:
        note("cut_off", open_sessions=open_sessions, reason=reason)
    else:
        note("not_idle", reason=reason)
