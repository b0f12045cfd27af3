"""The `draft` and `target` models: one process each, which `card` reaches through the pool."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np

from card.engines.phases import watched_by
from card.serving.geometry import pool_geometry
from card.serving.log import open_log
from card.serving.notices import Notices, announced
from card.serving.requests.refusal import Refusal, missing
from card.serving.triton.attach import ATTACHED_EPOCH, DEADLINE, KEY, Denials
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
