"""Watches one start of the server until all models serve."""

from __future__ import annotations

import time
from collections.abc import Callable

from card.cache import ENGINES
from card.serving.supervision.processes import ending
from card.serving.supervision.recovery import STUCK_S, Clock, LoadWatch
from card.serving.supervision.running import RunningService
from card.serving.supervision.watch import Lasting, ProcessState, Starvation

FORGOTTEN_S = 30.0
"""Once both engines are loaded the rest of a start takes a second. Triton gives up on a process
that does not answer for a second while it loads, as on an overloaded machine, and then waits for
the end of that process, for ever if it lives."""


class StartError(RuntimeError):
    """The server did not start; the message says which step failed.

    transient  whether another start may succeed
    known      whether the log has the message already
    """

    def __init__(self, message: str, *, transient: bool = False, known: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.for_the_log = "a model cannot be loaded" if known else message


class Startup:
    """Watches a starting server.

    limit_s  longest start; time in which an engine waits for a processor does not count
    """

    def __init__(
        self,
        service: RunningService,
        limit_s: float,
        clock: Clock = time.monotonic,
        starvation: Callable[[], Starvation] = Starvation,
    ) -> None:
        self._service = service
        self._limit_s = limit_s
        self._clock = clock
        self._began_s = clock()
        self._watch = LoadWatch(service.server, clock=clock)
        self._lasting = Lasting()
        self._starvation = {model: starvation() for model in ENGINES}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began_s

    def check(self) -> None:
        """Raise `StartError` once this start has certainly failed."""
        service, server = self._service, self._service.server
        if failure := service.load_failure:
            raise StartError(failure, known=True)
        if server.state is ProcessState.GONE:
            # Triton also ends with an exit code when it gives up on a process that gives no sign.
            began = any(server.stub(model) is not None for model in service.stubs)
            raise StartError(
                f"tritonserver ended during its start ({ending(server.code)}) and no model said "
                "why; its own messages stand above",
                transient=began or (server.code or 0) < 0,
            )
        if self._watch.is_server_stopped():
            raise StartError("tritonserver was stopped during its start", transient=True)
        if stuck := [model for model in service.stubs if self._watch.is_stuck(model)]:
            names = ", ".join(stuck)
            raise StartError(f"the processes of {names} did not survive the start", transient=True)
        unseen = server.died_unseen(service.stubs)
        if self._lasts("unseen", bool(unseen)) > STUCK_S:
            raise StartError(
                f"the processes of {', '.join(unseen)} ended as soon as they were started; "
                "what they said, if anything, stands above"
            )
        forgotten = service.engines_are_loaded and not service.ensemble_ready
        if self._lasts("forgotten", forgotten) > FORGOTTEN_S:
            raise StartError(
                f"both engines have been loaded for {FORGOTTEN_S:g} s and Triton serves nothing: "
                "it has given up on a process that it waits for",
                transient=True,
            )
        if service.guard is not None and (refusal := service.guard.refusal):
            raise StartError(refusal)
        if self.seconds - self._starved_s() > self._limit_s:
            raise StartError(
                f"the models were not ready within serving.load_timeout_s = {self._limit_s:g} s: "
                f"{service.ills() or 'the ensemble'}"
            )

    def _lasts(self, condition: str, holds: bool) -> float:
        return self._lasting.seconds(condition, holds, self._clock())

    def _starved_s(self) -> float:
        """Longest time that an engine waited for a processor."""
        stubs = {model: self._service.server.stub(model) for model in ENGINES}
        waits = (
            self._starvation[model].of(stub.process.pid, self.seconds)
            for model, stub in stubs.items()
            if stub is not None
        )
        return max(waits, default=0.0)
