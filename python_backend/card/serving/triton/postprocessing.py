"""The `postprocessing` model: turns a delta of `card` into the tensors of clients.

Only this model sees that a client of the ensemble left. It reports that to `card` in the pool.
"""

from __future__ import annotations

from typing import Any

from card.serving.found_pool import FoundPool
from card.serving.requests.delta import OUTPUTS, Delta
from card.serving.requests.refusal import Refusal
from card.serving.triton.triton_request import input_arrays, refused, response
from card.settings import load_settings


class PostprocessingModel:
    """One response per delta."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        self._pool = FoundPool.of_this_server(settings)
        self._most_tokens = settings.limits.max_tokens

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            delta = Delta.unpack(input_arrays(request), self._most_tokens)
        except ValueError as error:
            return refused(Refusal("INVALID_ARGUMENT", str(error)))
        if request.is_cancelled():
            self._pool.abandon(delta.numbers.place, delta.numbers.session_id)
        return response({output.name: output.array(delta) for output in OUTPUTS})
