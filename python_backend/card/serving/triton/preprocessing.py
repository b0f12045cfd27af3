"""The `preprocessing` model: checks every field of a request, and turns its text into ids."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.serving.found_pool import FoundPool
from card.serving.log import RequestLog
from card.serving.notices import Notices
from card.serving.requests.refusal import REASONS, Refusal, queue_full
from card.serving.requests.slot_request import guide_of, output_budget
from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.wire import Bounds, GenerateRequest, one_prompt, parse
from card.serving.triton.triton_request import (
    checked_arrays,
    deadline_ns,
    refused,
    request_id,
    response,
)
from card.settings import load_settings

log = logging.getLogger(__name__)

_LONGEST_TEXT = 1 << 16
"""Most bytes that are tokenized at load, which takes 50 ms; longer prompts are rare."""


class PreprocessingModel:
    """One response per request: `input_ids` [1, tokens] int32."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        self._log = RequestLog("preprocessing", settings.observability)
        self._slots = settings.cache.slots
        self._vocabulary = Vocabulary.load(settings.target.path)
        self._bounds = Bounds(settings.limits, self._vocabulary.size)
        self._take_memory(min(settings.limits.prompt_bytes, _LONGEST_TEXT))
        self._notices = Notices.of_this_service()
        self._pool = FoundPool.of_this_server(settings)

    def _take_memory(self, longest: int) -> None:
        """Tokenize a long text at load, so that the process does not grow later: the tokenizer
        keeps the memory of its longest text. With most tokenizers the text has a token for each
        byte."""
        try:
            self._vocabulary.prompt_tokens("\x01\x02" * (longest // 2))
        except Refusal as error:
            log.info("a text of control characters cannot be tokenized: %s", error)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            self._notices.check_draining()
            deadline_ns(request)  # a wrong timeout is refused here, before any work
            arrays = checked_arrays(request, GenerateRequest, self._bounds.limits)
            return response({"input_ids": self._input_ids(arrays)})
        except Refusal as refusal:
            self._count(refusal)
            self._log.refused(refusal, request_id(request))
            return refused(refusal)

    def _count(self, refusal: Refusal) -> None:
        """Count the refusal in the pool, for `card` to export."""
        if (pool := self._pool.get()) is not None:
            pool.count_refusal(REASONS.index(refusal.reason))

    def _input_ids(self, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int32]:
        request = parse(GenerateRequest, arrays, self._bounds, required=one_prompt(arrays))
        guide_of(request)  # a wrong one is refused here, before any work
        self._check_room()  # before tokenizing, which takes long
        ids = self._prompt_tokens(request)
        output_budget(request, len(ids), self._bounds.limits)
        return np.array([ids], np.int32)

    def _prompt_tokens(self, request: GenerateRequest) -> list[int]:
        if request.text_input is None:
            return list(request.input_ids)
        return self._vocabulary.prompt_tokens(request.text_input)

    def _check_room(self) -> None:
        """Refuse what a full `card` would refuse, to spare this model's work. Raises `Refusal`."""
        if self._notices.queue_full.stands:
            limit = self._bounds.limits.queued_requests
            raise queue_full(self._slots, limit, limit)
