"""One request, one response, for clients that do not stream: `ensemble_unary`, `tensorrt_llm` and
`llmapi`.

Requests wait in threads of their own. The text comes from `card` as a stream; between two pieces a
model checks whether its client left. (In an ensemble a model sees that only before its next step.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from threading import BoundedSemaphore, Lock
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from card.serving.found_pool import FoundPool
from card.serving.geometry import pool_geometry
from card.serving.notices import announced
from card.serving.requests.delta import LOG_PROBABILITIES, NUMBERS, OUTPUTS, TEXT, Delta
from card.serving.requests.refusal import Refusal, passed_on, queue_full
from card.serving.requests.sessions import deadline_exceeded
from card.serving.requests.slot_request import output_budget
from card.serving.requests.unary import (
    ENSEMBLE_UNARY,
    LLMAPI,
    TENSORRT_LLM,
    Front,
    UnaryRequest,
    arrays_for_card,
    gathered,
    token_outputs,
)
from card.serving.requests.vocabulary import Vocabulary, vocabulary_size
from card.serving.requests.wire import Bounds, check_shapes, parse
from card.serving.triton.triton_request import TOKEN, deadline_ns, refused, request_id, response
from card.settings import load_settings

log = logging.getLogger(__name__)


class UnaryModel:
    """Not decoupled: each request gets one answer, when its text is complete."""

    front: Front

    @announced
    def initialize(self, args: dict[str, str]) -> None:
        settings = load_settings()
        target = settings.target.path
        self._load_vocabulary = cache(partial(Vocabulary.load, target))
        self._loading = Lock()
        self._bounds = Bounds(settings.limits, vocabulary_size(target))
        self._pool = FoundPool.of_this_server(settings)
        self._slots, places = settings.cache.slots, pool_geometry(settings).places
        self._workers = ThreadPoolExecutor(places, thread_name_prefix="unary")
        self._idle = BoundedSemaphore(places)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            if self._idle.acquire(blocking=False):
                done = self._workers.submit(self._answer, request)
                done.add_done_callback(lambda _: self._idle.release())
            else:
                waiting = self._bounds.limits.queued_requests
                full = refused(queue_full(self._slots, waiting, waiting))
                _send(request.get_response_sender(), full)

    def finalize(self) -> None:
        self._workers.shutdown(wait=False)

    def _answer(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            answer = self._generated(request, sender.is_cancelled)
        except Refusal as refusal:
            answer = refused(self.front.in_its_words(refusal))
        except Exception:
            log.exception("a request could not be answered")  # its client still needs an answer
            why = "this request could not be answered; see the server's log"
            answer = refused(Refusal("INTERNAL", why))
        _send(sender, answer)

    def _generated(self, request: Any, is_cancelled: Callable[[], bool]) -> Any:
        front = self.front
        deadline = deadline_ns(request, front.parameters, front.inputs)
        limits = self._bounds.limits
        given = {front.ours(tensor.name()): tensor for tensor in request.inputs()}
        check_shapes(UnaryRequest, {name: one.shape() for name, one in given.items()}, limits)
        arrays = {name: one.as_numpy().reshape(1, -1) for name, one in given.items()}
        parsed = parse(UnaryRequest, arrays, self._bounds, required=front.prompt(arrays))
        text, vocabulary = parsed.text_input, self._vocabulary()
        ids = list(parsed.input_ids) if text is None else vocabulary.prompt_tokens(text)
        output_budget(parsed, len(ids), limits)
        tokenizer = vocabulary.tokenizer
        for_card = arrays_for_card(parsed, arrays, ids, tokenizer, self._bounds)
        whole = gathered(self._deltas(request, for_card, deadline, is_cancelled))
        if not whole.numbers.finish_reason:
            raise _broken_off(deadline)
        excludes = front.excludes
        if "exclude_input_in_output" in arrays:
            excludes = parsed.exclude_input_in_output
        # Streaming clients of TensorRT-LLM get only new tokens.
        if not (excludes or parsed.stream):
            prompt = tokenizer.decode(ids, skip_special_tokens=True) if text is None else text
            whole = replace(whole, text=prompt + whole.text, tokens=(*ids, *whole.tokens))
        told = {one.name: one.array(whole) for one in OUTPUTS} | token_outputs(whole.tokens)
        answer = {name: told[front.ours(name)] for name in front.outputs}
        if not front.batched:
            answer = {name: array.reshape(-1) for name, array in answer.items()}
        return response(answer)

    def _vocabulary(self) -> Vocabulary:
        """The vocabulary, loaded for the first request: most services never use this front."""
        with self._loading:
            return self._load_vocabulary()

    def _deltas(
        self,
        request: Any,
        arrays: Mapping[str, NDArray[Any]],
        deadline: int | None,
        is_cancelled: Callable[[], bool],
    ) -> Iterator[Delta]:
        """The deltas of `card`. When the client left, this marks the request as abandoned, and
        `card` then ends it."""
        token = self._pool.token()
        asked = pb_utils.InferenceRequest(
            model_name="card",
            request_id=request_id(request),
            requested_output_names=[TEXT, NUMBERS, LOG_PROBABILITIES],
            inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
            timeout=0 if deadline is None else max(1, (deadline - time.monotonic_ns()) // 1000),
            parameters={} if token is None else {TOKEN: token},
        )
        for piece in asked.exec(decoupled=True):
            if piece.has_error():
                raise passed_on(piece.error().message())
            found = {tensor.name(): tensor.as_numpy() for tensor in piece.output_tensors()}
            if not found:  # the end of the stream
                continue
            delta = Delta.unpack(found, self._bounds.limits.max_tokens)
            if is_cancelled():
                self._pool.abandon(delta.numbers.place, delta.numbers.session_id)
            yield delta


class EnsembleUnaryModel(UnaryModel):
    """Text in, text out: the tensors of `ensemble`."""

    front = ENSEMBLE_UNARY


class TensorRtLlmModel(UnaryModel):
    """Tokens in, tokens out: the tensors of TensorRT-LLM's model `tensorrt_llm`."""

    front = TENSORRT_LLM


class LlmApiModel(UnaryModel):
    """Text in, text out: the tensors of TensorRT-LLM's model for its LLM API."""

    front = LLMAPI


def _broken_off(deadline: int | None) -> Refusal:
    """The error of a text without an end: BLS drops an error in the middle of a stream."""
    if deadline is not None and time.monotonic_ns() >= deadline:
        return deadline_exceeded("decoding")
    return Refusal("UNAVAILABLE", "the text was broken off; see card's log, or try again")


def _send(sender: Any, answer: Any) -> None:
    sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
