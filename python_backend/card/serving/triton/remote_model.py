"""The `remote` model: writes the chains of devices from their streams into the pool.

The model has its own process, so that the messages of devices delay neither `card` nor an engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from card.cache import Pool
from card.serving.found_pool import FoundPool
from card.serving.notices import announced
from card.serving.requests.refusal import Refusal
from card.serving.requests.remote import (
    TAKEN,
    RemoteDrafts,
    check_sizes,
    read_draft,
)
from card.serving.requests.vocabulary import vocabulary_size
from card.serving.triton.triton_request import deadline_ns, input_arrays, refused, response
from card.settings import load_settings


class RemoteModel:
    """One response per message: taken, too late, or refused."""

    @announced
    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        self._vocabulary = vocabulary_size(settings.target.path)
        self._found = FoundPool.of_this_server(settings)
        self._pool: Pool | None = None
        self._drafts: RemoteDrafts | None = None

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            return response({TAKEN: np.array([self._take(request)])})
        except Refusal as refusal:
            return refused(refusal)

    def _take(self, request: Any) -> bool:
        deadline_ns(request)  # a wrong timeout, or an unknown parameter, is refused
        check_sizes({tensor.name(): tensor.shape() for tensor in request.inputs()})
        digest, draft = read_draft(input_arrays(request))
        return self._current().take(digest, draft)

    def _current(self) -> RemoteDrafts:
        """The drafts of the pool of the present `card`. Raises `Refusal` while there is none."""
        pool = self._found.get()
        if pool is None:
            raise Refusal("UNAVAILABLE", "card is not running; decode without candidates")
        if self._drafts is None or pool is not self._pool:
            self._pool, self._drafts = pool, RemoteDrafts(pool, self._vocabulary)
        return self._drafts
