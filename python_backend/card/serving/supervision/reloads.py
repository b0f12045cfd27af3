"""Reloads of models in the background: begun as the policy decides, their ends reported to it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from card.serving.supervision.journal import note, warn
from card.serving.supervision.policy import (
    EXPENDABLE,
    STUBS,
    Action,
    RecoveryPolicy,
    Reload,
    RestartServer,
    Sight,
)
from card.serving.supervision.recovery import BeyondReloadError, RecoveryError, StuckLoadError
from card.serving.supervision.service import Service


class Reloads:
    """The reloads of one server after another, at most one for each model at a time."""

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._workers = ThreadPoolExecutor(len(STUBS), thread_name_prefix="recovery")
        self._running: dict[str, Future[None]] = {}
        self._awaiting_calm: set[str] = set()
        self.begun = dict.fromkeys(STUBS, 0)
        """How many were begun, by model."""

    def heal(self, service: Service, sights: dict[str, Sight]) -> str | None:
        """Reload what needs it; why the server must restart, if it must."""
        actions = self._finished(service)
        actions += self._policy.decide(time.monotonic(), service.server_sight, sights)
        for action in actions:
            if isinstance(action, RestartServer):
                return action.reason
            self._begin(service, action)
        return None

    def forget(self) -> None:
        """The server whose models are being reloaded ends, and its reloads matter no more."""
        self._running.clear()
        self._awaiting_calm.clear()

    def close(self) -> None:
        """Wait for the threads; their server must have ended."""
        self._workers.shutdown()

    def _begin(self, service: Service, action: Reload) -> None:
        warn("reloading", model=action.model, reason=action.reason)
        self.begun[action.model] += 1
        self._running[action.model] = self._workers.submit(service.reload, action.model)

    def _finished(self, service: Service) -> list[Action]:
        """Report finished reloads to the policy; returns what it wants instead of failed ones."""
        actions: list[Action] = []
        for model in [model for model, reload in self._running.items() if reload.done()]:
            reload, now_s = self._running.pop(model), time.monotonic()
            try:
                reload.result()
            except BeyondReloadError as error:
                if isinstance(error, StuckLoadError) and model in EXPENDABLE and service.open_slots:
                    self._running[model] = reload  # streams go on without it; look again
                    self._tell_restart_waits(model, error)
                else:
                    actions.append(RestartServer(f"{model}: {error}"))
            except RecoveryError as error:
                warn("reload_failed", model=model, reason=error)
                if action := self._policy.recovery_failed(now_s, model, str(error)):
                    actions.append(action)
            else:
                note("recovered", model=model)
                self._policy.recovered(now_s, model)
        return actions

    def _tell_restart_waits(self, model: str, error: BeyondReloadError) -> None:
        """Once for each time that a lost model needs a new server, which open streams do not."""
        if model not in self._awaiting_calm:
            self._awaiting_calm.add(model)
            warn("restart_waits", model=model, reason=error, until="no stream is open")
