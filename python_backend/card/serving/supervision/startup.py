"""One start of the server: what may go wrong until all models serve."""

from __future__ import annotations

import time
from collections.abc import Callable

from card.cache import ENGINES
from card.serving.supervision.policy import ProcessState, lasted_s
from card.serving.supervision.recovery import STUCK_S, Clock, LoadWatch
from card.serving.supervision.service import Service
from card.serving.supervision.starvation import Starvation

FORGOTTEN_S = 30.0
"""Once both engines are loaded the rest of a start takes a second. Triton gives up on a process
that does not answer for a second while it loads, as on a machine with far too much to do, and then
waits for the end of it, for ever where it lives."""


class StartError(RuntimeError):
    """The server does not come up; the message says how far it came."""

    pause_s = 0.0
    """Before another attempt."""

    @property
    def for_the_log(self) -> str:
        """The message, as far as it does not stand there already."""
        return str(self)


class UnloadableError(StartError):
    """A model cannot be loaded. The message is its own, and it has logged it."""

    @property
    def for_the_log(self) -> str:
        return "a model cannot be loaded"


class CrashError(StartError):
    """The server or a model's process ended or was stopped during the start and no model said why,
    or Triton waits in vain. On a machine with far too much to do Triton gives up a process that
    gives no sign for a second, and ends. That says nothing about the next start."""

    pause_s = 1.0


class ShortageError(StartError):
    """This machine has no process, descriptor or room to spare now."""

    pause_s = 1.0


class Startup:
    """Watches a server that starts, and the seconds that it takes.

    limit_s  how long it may take; time that an engine waits for a processor does not count
    """

    def __init__(
        self,
        service: Service,
        limit_s: float,
        clock: Clock = time.monotonic,
        starvation: Callable[[], Starvation] = Starvation,
    ) -> None:
        self._service = service
        self._limit_s = limit_s
        self._clock = clock
        self._began_s = clock()
        self._watch = LoadWatch(service.server, clock=clock)
        self._since_s: dict[str, float] = {}
        self._starvation = {model: starvation() for model in ENGINES}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began_s

    def check(self) -> None:
        """Raise `StartError` once it is sure that this start comes to nothing."""
        if failure := self._service.load_failure:
            raise UnloadableError(failure)
        self._check_processes()
        if self._is_forgotten():
            raise CrashError(
                f"both engines have been loaded for {FORGOTTEN_S:g} s and Triton serves nothing: "
                "it has given up on a process that it waits for"
            )
        if wrong := self._service.guard_refusal:
            raise StartError(wrong)
        if self.seconds - self._starved_s() > self._limit_s:
            raise StartError(
                f"the models were not ready within serving.load_timeout_s = {self._limit_s:g} s: "
                f"{self._missing() or 'the ensemble'}"
            )

    def _check_processes(self) -> None:
        service, server = self._service, self._service.server
        if server.state is ProcessState.GONE:
            if server.crashed or any(server.stub(model) is not None for model in service.stubs):
                raise CrashError(
                    f"tritonserver ended during its start ({server.ending}) and no model said why, "
                    "as on a machine with far too much to do; its own messages stand above"
                )
            raise StartError(
                f"tritonserver ended during its start ({server.ending}); "
                "its own messages stand above"
            )
        if self._watch.is_server_stopped():
            raise CrashError("tritonserver was stopped during its start")
        for model in service.stubs:
            self._watch.end_paused(model)
        if stuck := [model for model in service.stubs if self._watch.is_stuck(model)]:
            raise CrashError(f"the processes of {', '.join(stuck)} did not survive the start")
        unseen = server.died_unseen(service.stubs)
        if lasted_s(self._since_s, "unseen", bool(unseen), self._clock()) > STUCK_S:
            raise StartError(
                f"the processes of {', '.join(unseen)} ended as soon as they were started; "
                "what they said, if anything, stands above"
            )

    def _is_forgotten(self) -> bool:
        """Whether Triton waits for a process that has long done all that it was to do."""
        service = self._service
        waits = service.engines_are_loaded and not service.ensemble_ready
        return lasted_s(self._since_s, "loaded", waits, self._clock()) > FORGOTTEN_S

    def _starved_s(self) -> float:
        """How long the engine that was starved for longest has waited for a processor."""
        stubs = {model: self._service.server.stub(model) for model in ENGINES}
        waits = (
            self._starvation[model].of(stub.process.pid, self.seconds)
            for model, stub in stubs.items()
            if stub is not None
        )
        return max(waits, default=0.0)

    def _missing(self) -> dict[str, str]:
        """What is not well yet, and why not."""
        service = self._service
        conditions = {m: service.condition(m, sight) for m, sight in service.sights().items()}
        if service.guard is not None:
            conditions["guard"] = service.guard.condition
        return {name: condition for name, condition in conditions.items() if condition != "well"}
