"""The `draft` and `target` models: a process each, which works for `card` through the pool."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np

from card.cache import Pool
from card.decoding import TargetLoop
from card.drafting import DraftLoop
from card.engines import Engine, load_engine
from card.serving.attach import ATTACHED_EPOCH, DEADLINE, KEY
from card.serving.engine_process import DRAFT_NICENESS, EngineProcess, Loop
from card.serving.geometry import pool_geometry
from card.serving.refusal import Refusal, missing
from card.serving.triton_request import input_arrays, refused, response
from card.settings import Settings, load_settings


class _EngineModel(ABC):
    """Loads its model, then waits for `card`."""

    role: ClassVar[Literal["draft", "target"]]

    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        engine = load_engine(settings, self.role)
        self._process = EngineProcess(
            self.role,
            settings.cache.directory,
            pool_geometry(settings),
            lambda pool: self._loop(engine, pool, settings),
            engine_timeout_s=settings.serving.engine_timeout_s,
            server_pid=os.getppid(),
        )
        self._process.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def finalize(self) -> None:
        self._process.stop()

    def _respond(self, request: Any) -> Any:
        try:
            arrays = input_arrays(request)
            for name in (KEY, DEADLINE):
                if name not in arrays:
                    raise missing(name, "requests to ensemble; only card attaches engines")
            key = arrays[KEY].reshape(-1)[0].decode("utf-8", "replace")
            epoch = self._process.attach(key, int(arrays[DEADLINE].reshape(-1)[0]))
        except Refusal as refusal:
            return refused(refusal)
        return response({ATTACHED_EPOCH: np.array([epoch], np.int64)})

    @abstractmethod
    def _loop(self, engine: Engine, pool: Pool, settings: Settings) -> Loop:
        """What the engine does while it is attached."""


class DraftModel(_EngineModel):
    """Grows candidate trees."""

    role = "draft"

    def _loop(self, engine: Engine, pool: Pool, settings: Settings) -> Loop:
        return DraftLoop(engine, pool, settings)

    def initialize(self, args: dict[str, str]) -> None:
        os.nice(DRAFT_NICENESS)
        super().initialize(args)


class TargetModel(_EngineModel):
    """Queries, verifies, corrects."""

    role = "target"

    def _loop(self, engine: Engine, pool: Pool, settings: Settings) -> Loop:
        return TargetLoop(engine, pool, settings)
