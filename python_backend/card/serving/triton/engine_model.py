"""The `draft` and `target` models: one process each, which `card` reaches through the pool."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from card.engines.phases import watched_by
from card.serving.geometry import pool_geometry
from card.serving.log import EventLog, open_log
from card.serving.notices import Notices, announced
from card.serving.requests.refusal import Refusal, missing
from card.serving.triton.attach import ATTACHED_EPOCH, DEADLINE, KEY
from card.serving.triton.engine_process import EngineProcess
from card.serving.triton.loaded_model import load_model
from card.serving.triton.triton_request import input_arrays, refused, response
from card.settings import Role, load_settings


class _EngineModel:
    """Loads its model, then waits for `card`."""

    role: ClassVar[Role]

    @announced
    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        self._denials = Denials(open_log(self.role, settings.observability.log_format))
        server_pid = os.getppid()
        loading = Notices.of_this_service().loading[self.role]
        with watched_by(loading.post):  # threads that outlive the load inherit the watcher
            self._model = load_model(settings, self.role, server_pid)
        self._process = EngineProcess(
            self.role,
            settings.cache.directory,
            pool_geometry(settings),
            self._model.make_loop,
            engine_timeout_s=settings.serving.engine_timeout_s,
            server_pid=server_pid,
        )
        self._process.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def finalize(self) -> None:
        self._process.stop()
        self._model.close()

    def _respond(self, request: Any) -> Any:
        try:
            arrays = input_arrays(request)
            for name in (KEY, DEADLINE):
                if name not in arrays:
                    raise missing(name, "requests to ensemble; only card attaches engines")
            key = arrays[KEY].reshape(-1)[0].decode("utf-8", "replace")
            epoch = self._process.attach(key, int(arrays[DEADLINE].reshape(-1)[0]))
        except Refusal as refusal:
            if refusal.code == "PERMISSION_DENIED":
                self._denials.count()
            return refused(refusal)
        return response({ATTACHED_EPOCH: np.array([epoch], np.int64)})


class DraftModel(_EngineModel):
    """Grows candidate trees."""

    role = "draft"


class TargetModel(_EngineModel):
    """Queries, verifies, corrects."""

    role = "target"


QUIET_S = 10.0
"""Least seconds between two lines, so that a client that tries keys cannot fill the log."""


class Denials:
    """Logs a line for the first refusal; later lines, at least `QUIET_S` apart, count the
    refusals since the line before."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._untold = 0
        self._silent_until_s = -float("inf")

    def count(self) -> None:
        """Count one refusal."""
        self._untold += 1
        now_s = self._clock()
        if now_s >= self._silent_until_s:
            self._log.warn("attach_refused", requests=self._untold)
            self._untold = 0
            self._silent_until_s = now_s + QUIET_S
