"""The `postprocessing` model: a delta of `card` becomes the tensors that clients know.

It is also the one place that sees a client of the ensemble leave, and tells `card` in the pool.
"""

from __future__ import annotations

import os
from typing import Any

from card.cache import Pool
from card.serving.delta import OUTPUTS, Delta
from card.serving.geometry import pool_geometry
from card.serving.refusal import Refusal
from card.serving.triton_request import input_arrays, refused, response
from card.settings import load_settings


class PostprocessingModel:
    """One response per delta."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        self._directory = settings.cache.directory
        self._geometry = pool_geometry(settings)
        self._most_tokens = settings.limits.max_tokens

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            delta = Delta.unpack(input_arrays(request), self._most_tokens)
        except ValueError as error:
            return refused(Refusal("INVALID_ARGUMENT", str(error)))
        if request.is_cancelled():
            self._abandon(delta.numbers.place, delta.numbers.generation)
        return response({output.name: output.array(delta) for output in OUTPUTS})

    def _abandon(self, place: int, generation: int) -> None:
        # Opened anew each time: clients leave seldom, and a restarted `card` may have a new pool.
        pool = Pool.open(self._directory, os.getppid(), self._geometry)
        if pool is None:
            return
        if 0 <= place < pool.geometry.places:
            pool.abandoned[place] = generation
        pool.close()
