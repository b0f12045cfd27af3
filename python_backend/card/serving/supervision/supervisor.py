"""The supervisor: runs the state machine of `states` from the start of a service to its end."""

from __future__ import annotations

import ipaddress
import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from card.serving.addresses import bracketed
from card.serving.model_files import ModelFilesReading
from card.serving.supervision.health import HealthServer, ServiceHealth, state_of
from card.serving.supervision.recovery import LOG, Healing
from card.serving.supervision.repository import RepositoryError
from card.serving.supervision.residue import RunDirectory, sweep
from card.serving.supervision.running import RunningService
from card.serving.supervision.startup import StartError, Startup
from card.serving.supervision.states import SERVICE, Happening, Service, stubs_of
from card.serving.supervision.watch import ProcessState, Sight
from card.serving.triton_server import find_triton, http_address
from card.settings import ServingSettings, Settings

LOOK_S = 0.1
"""Pause between two observations; each takes 1 ms of the engines' cores."""
START_ATTEMPTS = 3
"""Starts in a row that may fail before the supervisor ends with exit code 1."""
_START_PAUSE_S = 1.0
CALM_S = 2.0
"""Without an open session for so long, no client waits: Triton takes a second or more to end a
process, and does not finish every request that lost its client or its process."""
LINGER_S = 0.5
"""Without an open session for so long, the last responses have left and the queue is empty."""


class UnservableError(RuntimeError):
    """The models' files cannot be served; the message says why, in one line."""


class StopRequests:
    """Stop requests from signals, in a pipe, because a signal handler must not take locks. The pipe
    stays open as long as the process."""

    def __init__(self) -> None:
        self._asked = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def ask(self) -> None:
        """Add a stop request; safe in a signal handler and in any thread."""
        with suppress(BlockingIOError):  # it is full of requests
            os.write(self._writer, b"\0")

    def wait_for(self, number: int, within_s: float) -> bool:
        """Wait at most `within_s` for the request of this number; returns whether it came."""
        if self._asked < number and select.select([self._reader], [], [], within_s)[0]:
            self._asked += len(os.read(self._reader, 4096))
        return self._asked >= number


class Supervisor:
    """Keeps one service running until a stop request."""

    def __init__(
        self,
        settings: Settings,
        model_repository: Path,
        stop_requests: StopRequests,
        clock: Callable[[], float] = time.monotonic,
        start_service: Callable[..., RunningService] = RunningService,
        look_s: float = LOOK_S,
    ) -> None:
        """Begin to read the models' files in a child process and open the health port; then sweep
        what dead supervisors left and find the server.

        Raises `OSError` or `TritonNotFoundError` where that is impossible, and leaves nothing.
        """
        self._settings = settings
        self._model_repository = model_repository
        self._stop_requests = stop_requests
        self._clock = clock
        self._start_service = start_service
        self._look_s = look_s
        serving, directory = settings.serving, settings.cache.directory
        self._service: RunningService | None = None
        self._told_to_clients: Mapping[str, str] = {}
        self._attempt = 1
        self._restarts = self._guard_restarts = 0
        self._awaits_guard = False
        """Whether a replaced guard does not listen yet."""
        with ExitStack() as end:
            self._reading = ModelFilesReading(settings)
            end.callback(self._reading.close)
            self._health = HealthServer(
                serving.address, serving.health_port, stubs=stubs_of(settings.roles)
            )
            end.callback(self._health.close)
            for path in sweep(directory):
                LOG.note("swept", path=path)
            self._run_directory = RunDirectory(directory)
            end.callback(self._run_directory.close)
            self._install = find_triton(self._run_directory.path, serving.tritonserver)
            self._healing = Healing(
                engine_timeout_s=serving.engine_timeout_s, load_timeout_s=serving.load_timeout_s
            )
            end.callback(self._healing.close)
            end.callback(self._clear)
            self._end = end.pop_all()

    def run(self) -> None:
        """Start, watch, and drain once asked to stop; asked twice, wait for no open stream.

        Leaves no process and no file behind. Raises `UnservableError` for files that cannot be
        served, and `StartError` when the server does not come up, or not any more.
        """
        phases = {
            Service.READING: self._read,
            Service.STARTING: self._start,
            Service.SERVING: self._serve,
            Service.DRAINING: self._drain,
        }
        state = Service.READING
        with self._end:  # each step is taken even if one before it fails
            while state is not Service.STOPPED:
                state = SERVICE[state, phases[state]()]
        LOG.note("stopped")

    # --- the phases: each returns what ends it -------------------------------------------------

    def _read(self) -> Happening:
        """Wait for the child that reads the models' files."""
        limit_s = self._settings.serving.load_timeout_s
        end_s = self._clock() + limit_s
        while not self._reading.has_ended(self._look_s):
            self._health.publish(ServiceHealth("starting"))
            if self._stop_requests.wait_for(1, 0.0):
                return Happening.STOP
            if self._clock() > end_s:
                raise UnservableError(
                    f"the models' files were not read within serving.load_timeout_s = {limit_s:g} s"
                )
        problem, self._told_to_clients = self._reading.result
        if problem is not None:
            raise UnservableError(problem)
        return Happening.STOP if self._stop_requests.wait_for(1, 0.0) else Happening.FILES_FIT

    def _start(self) -> Happening:
        """Start the server and wait until all models serve."""
        try:
            service = self._service = self._start_service(
                self._settings,
                self._model_repository,
                self._told_to_clients,
                self._install,
                self._run_directory,
            )
            LOG.note("starting", server_pid=service.server.pid)
            startup = Startup(service, self._settings.serving.load_timeout_s)
            concealed = False
            while not service.is_complete():
                startup.check()
                self._tend_guard(service)
                concealed = concealed or service.conceal_header()
                self._publish(service, service.sights(), "starting")
                if self._stop_requests.wait_for(1, self._look_s):
                    return Happening.STOP
        except OSError as error:
            shortage = StartError(f"the server cannot be started: {error}", transient=True)
            return self._fail_start(shortage)
        except StartError as error:
            return self._fail_start(error)
        self._attempt = 1
        self._healing.begin()
        self._publish(service, service.sights())
        if not (concealed or service.conceal_header()):
            LOG.warn(
                "header_visible",
                reason="this kernel does not let a process change a command line; see SECURITY.md",
            )
        if self._restarts:
            LOG.note("server_recovered", server_pid=service.server.pid)
        self._say_ready(startup.seconds)
        return Happening.COMPLETE

    def _serve(self) -> Happening:
        """Watch the service until the server is lost or a stop request comes."""
        service = self._service
        assert service is not None
        while not self._stop_requests.wait_for(1, self._look_s):
            if not self._run_directory.path.exists():
                raise StartError(
                    f"{self._run_directory.path} was removed while it served, and perhaps all of "
                    "this user's shared memory: see RemoveIPC in docs/operations.md"
                )
            sights = service.sights()
            if reason := self._heal(service, sights):
                LOG.warn("restarting_server", reason=reason)
                self._restarts += 1
                self._clear()
                return Happening.SERVER_LOST
            self._tend_guard(service)
            self._publish(service, sights)
        return Happening.STOP

    def _drain(self) -> Happening:
        """Refuse new requests and let open ones finish within the drain limit."""
        service, drain_s = self._service, self._settings.serving.drain_s
        assert service is not None
        LOG.note("draining", open_sessions=service.open_slots, limit_s=drain_s)
        busy_s = self._clock()
        limit_s = busy_s + drain_s
        service.refuse()
        while not self._has_ended(service, busy_s):
            now_s = self._clock()
            if open_sessions := service.open_slots:
                busy_s = now_s
            if now_s > limit_s:
                return _cut_off(open_sessions, "the drain limit is reached", Happening.DRAINED)
            if now_s > busy_s + CALM_S:
                calm = f"no session for {CALM_S:g} s, yet Triton holds a model"
                return _cut_off(0, calm, Happening.DRAINED)
            sights = service.sights()
            if self._stop_requests.wait_for(2, self._look_s):
                return _cut_off(open_sessions, "there was another signal to stop", Happening.STOP)
            # Models that were retired have ended as they should, and no session needs another.
            reason = None if service.is_retired else self._heal(service, sights)
            if reason is not None:
                return _cut_off(open_sessions, reason, Happening.SERVER_LOST)
            self._tend_guard(service)
            self._publish(service, sights, "draining")
        return Happening.DRAINED

    # --- steps ---------------------------------------------------------------------------------

    def _fail_start(self, error: StartError) -> Happening:
        """Allow another attempt, or raise the error: the first start of all is only tried again
        after a failure that says nothing about the next one."""
        if self._attempt == START_ATTEMPTS or not (error.transient or self._restarts):
            raise error
        LOG.warn("start_failed", attempt=self._attempt, reason=error.for_the_log)
        self._attempt += 1
        self._clear()
        stopped = error.transient and self._stop_requests.wait_for(1, _START_PAUSE_S)
        return Happening.STOP if stopped else Happening.START_FAILED

    def _has_ended(self, service: RunningService, busy_s: float) -> bool:
        """Whether a draining service has answered everything; `busy_s` is the time of its last
        session."""
        if service.open_slots or self._clock() - busy_s < LINGER_S:
            return False
        try:
            service.retire()
        except RepositoryError as error:
            LOG.warn("not_drained", reason=error)
            return True
        return service.is_idle()

    def _clear(self) -> None:
        """End the server and everything that belongs to it."""
        self._healing.begin()
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

    def _heal(self, service: RunningService, sights: Mapping[str, Sight]) -> str | None:
        """Recover models and the guard; returns why the server must restart, or None."""
        return self._healing.heal(sights, service.server_sight, service.open_slots, service.reload)

    def _tend_guard(self, service: RunningService) -> None:
        if (guard := service.guard) is None:
            return
        guard.look()
        try:
            reason = guard.replace()
        except OSError as error:  # this machine has no process or descriptor to spare now
            LOG.warn("guard_not_started", reason=error)
            return
        if reason is not None:
            LOG.warn("restarting_guard", reason=reason)
            self._guard_restarts += 1
            self._awaits_guard = True
        elif self._awaits_guard and guard.condition == "well":
            LOG.note("guard_recovered", guard_pid=guard.pid)
            self._awaits_guard = False

    def _publish(
        self, service: RunningService, sights: dict[str, Sight], state: str | None = None
    ) -> None:
        """Tell the health port what is seen; `state` overrides what they say."""
        models = {
            model: service.model_health(
                model, sight, self._healing.begun[model], self._healing.is_reloading(model)
            )
            for model, sight in sights.items()
        }
        guard = service.guard_health
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

    def _say_ready(self, seconds: float) -> None:
        serving = self._settings.serving
        if meets_strangers(serving):
            LOG.note(
                "unguarded",
                reason="others than this machine reach what SECURITY.md calls known holes",
            )
        host = bracketed(serving.address)
        ports = {name: f"{host}:{port}" for name, port in serving.ports.items()}
        LOG.note("ready", seconds=round(seconds, 1), **ports)


def meets_strangers(serving: ServingSettings) -> bool:
    """Whether other machines may send requests that crash this version of Triton."""
    open_on = {
        *((http_address(serving),) if serving.http_inference else ()),
        *(() if serving.guard else (serving.address,)),
    }
    return not all(ipaddress.ip_address(address).is_loopback for address in open_on)


def _cut_off(open_sessions: int, reason: str, ended_by: Happening) -> Happening:
    """Log why a drain ends before Triton has let go of every model; without open sessions that is
    harmless."""
    if open_sessions:
        LOG.note("cut_off", open_sessions=open_sessions, reason=reason)
    else:
        LOG.note("not_idle", reason=reason)
    return ended_by
