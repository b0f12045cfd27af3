"""The worker process: the executor's loop without overlap, as a drafter meets it.

Like TorchSampler it has one generator per engine and samples every verified row. It applies
`min_tokens` to all rows of a request with the length of its first one, which is wrong behind a
candidate: that is why such requests go without candidates.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.engines import SequenceTokens
from card.engines.interface import RowCosts
from card.loading import Examination, load_engine
from card.settings import load_settings
from tensorrt_llm.llmapi import SamplingParams, TorchLlmArgs

_CHUNK = 64


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    id: int
    prompt_token_ids: list[int]
    sampling_params: SamplingParams


@dataclass(frozen=True, slots=True)
class Response:
    """One message of the worker about one request."""

    client_id: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    is_fatal: bool = False


class LlmRequest:
    """A request as the executor and the drafter see it; names without `py_` are the stand-in's."""

    def __init__(self, message: GenerationRequest, session: int, room: int) -> None:
        parameters = message.sampling_params
        self.py_client_id = message.id
        self.py_draft_tokens: list[int] = []
        self.is_dummy = self.is_attention_dp_dummy = self.is_cuda_graph_dummy = False
        self.session = session
        self.parameters = parameters
        self.most = min(parameters.max_tokens, room)
        self.ends = [-1 if parameters.ignore_eos else parameters.end_id]
        self.ends += parameters.stop_token_ids or []
        self.is_prefilled = False
        self.finish_reason: str | None = None
        self.output: list[int] = []
        self.logprobs: list[dict[int, Logprob]] = []
        self.reported = 0
        self._prompt = message.prompt_token_ids

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return [*self._prompt, *self.output]


class PyExecutor:
    def __init__(
        self,
        args: TorchLlmArgs,
        messages: queue.Queue[Any],
        send: Callable[[list[Response]], None],
    ) -> None:
        model = {"path": args.model, "dtype": args.dtype}
        settings = load_settings(
            engine="auto",
            target=model | {"threads": 1, "threads_alone": 1},
            draft=model,
            cache={"slots": args.max_batch_size},
            limits={"context_tokens": args.max_seq_len},
        )
        # Its scheduler does not ask what passes cost.
        unmeasured = Examination(measure_row_costs=lambda _: RowCosts({1: 1.0}))
        self._engine = load_engine(settings, "target", examination=unmeasured)
        self._most, self._context = args.max_batch_size, args.max_seq_len or 1 << 30
        self._messages, self._send = messages, send
        self._generator = np.random.default_rng(42)
        self._drafter = getattr(args.speculative_config, "drafter", None)
        self._draft_len = getattr(args.speculative_config, "max_draft_len", 0)
        self._active: list[LlmRequest] = []
        self._waiting: list[GenerationRequest] = []
        self._responses: list[Response] = []

    def loop(self) -> None:
        while self._fetch():
            prompts = [request for request in self._active if not request.is_prefilled]
            generating = [request for request in self._active if request.is_prefilled]
            self._draft(prompts, generating)
            for request in prompts:
                self._prefill(request)
            self._verify(generating)
            self._respond()

    def _fetch(self) -> bool:
        """Read what arrived, blocking while idle; False at the end."""
        while True:
            idle = not self._active and not self._waiting and not self._responses
            try:
                message = self._messages.get(block=idle)
            except queue.Empty:
                break
            if message is None:
                return False
            if isinstance(message, GenerationRequest):
                self._waiting.append(message)
            else:
                self._cancel(message)
        while self._waiting and len(self._active) < self._most:
            self._activate(self._waiting.pop(0))
        return True

    def _cancel(self, client_id: int) -> None:
        for request in self._active:
            if request.py_client_id == client_id:
                request.finish_reason = "cancelled"
        for message in [message for message in self._waiting if message.id == client_id]:
            self._waiting.remove(message)
            self._responses.append(Response(client_id, finish_reason="cancelled"))

    def _activate(self, message: GenerationRequest) -> None:
        prompt = message.prompt_token_ids
        room = self._context - len(prompt)
        wrong = [token for token in prompt if not 0 <= token < self._engine.vocabulary]
        if room < 1 or wrong:
            error = f"prompt of {len(prompt)} tokens, {wrong[:3]} not in the vocabulary"
            self._responses.append(Response(message.id, error=error))
            return
        self._active.append(LlmRequest(message, self._engine.open_session(), room))

    def _draft(self, prompts: list[LlmRequest], generating: list[LlmRequest]) -> None:
        """Zeros in place of the last pass's drafts, then the hook, and padding right after it."""
        if self._drafter is None:
            return
        for request in generating:
            request.py_draft_tokens = [0] * self._draft_len
        scheduled = SimpleNamespace(context_requests=prompts, generation_requests=generating)
        assert self._drafter.should_use_spec_decode(self._active, self._most, 0, self._draft_len)
        self._drafter.prepare_draft_tokens(scheduled, None)
        self._drafter.pad_draft_tokens_for_cuda_graph(scheduled)
        for request in generating:
            drafted = request.py_draft_tokens
            if len(drafted) != self._draft_len:
                raise RuntimeError(f"shape mismatch: {len(drafted)} draft rows in {drafted}")
            if any(type(t) is not int or not 0 <= t < self._engine.vocabulary for t in drafted):
                raise RuntimeError(f"index out of range: {drafted}")

    def _prefill(self, request: LlmRequest) -> None:
        tokens = request.get_tokens(0)
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            (logits,) = self._engine.forward([SequenceTokens(request.session, chunk, logits=1)])
            self._engine.commit_kv(request.session, range(len(chunk)))
        request.is_prefilled = True
        self._accept(request, [logits.row(0)])

    def _verify(self, requests: list[LlmRequest]) -> None:
        if not requests:
            return
        batch = [
            SequenceTokens(r.session, [r.get_tokens(0)[-1], *r.py_draft_tokens]) for r in requests
        ]
        found = self._engine.forward(batch)
        for request, rows, logits in zip(requests, batch, found, strict=True):
            before = len(request.output)
            self._accept(request, [logits.row(row) for row in range(len(rows.tokens))])
            self._engine.commit_kv(request.session, range(len(request.output) - before))

    def _accept(self, request: LlmRequest, rows: list[NDArray[Any]]) -> None:
        """Sample every row; a draft token is accepted while it equals the token sampled there."""
        sampled = [self._sample(request, row.astype(np.float64)) for row in rows]
        for step, token in enumerate(sampled):
            request.output.append(token)
            if (wanted := request.parameters.logprobs) is not None:
                request.logprobs.append(_likeliest(rows[step].astype(np.float64), wanted))
            if request.finish_reason is None and token in request.ends:
                request.finish_reason = "stop"
            elif request.finish_reason is None and len(request.output) >= request.most:
                request.finish_reason = "length"
            drafted = request.py_draft_tokens[step] if step + 1 < len(rows) else None
            if request.finish_reason is not None or token != drafted:
                break

    def _sample(self, request: LlmRequest, row: NDArray[Any]) -> int:
        parameters = request.parameters
        if parameters.min_tokens and len(request.output) < parameters.min_tokens:
            row[[end for end in request.ends[:1] if end >= 0]] = -np.inf
        if parameters.is_greedy:
            return int(row.argmax())
        weights = np.exp((row - row.max()) / (parameters.temperature or 1.0))
        return int(self._generator.choice(len(weights), p=weights / weights.sum()))

    def _respond(self) -> None:
        responses, self._responses = self._responses, []
        for request in list(self._active):
            new = slice(request.reported, len(request.output))
            request.reported = len(request.output)
            tokens, logprobs = request.output[new], request.logprobs[new]
            responses.append(
                Response(request.py_client_id, tokens, logprobs, request.finish_reason)
            )
            if request.finish_reason is not None:
                self._active.remove(request)
                self._engine.close_session(request.session)
        if responses:
            self._send(responses)


def _likeliest(row: NDArray[Any], count: int) -> dict[int, Logprob]:
    """The `count` likeliest ids of the unprocessed row; the sampled one may not be among them."""
    normaliser = row.max() + math.log(np.exp(row - row.max()).sum())
    best = np.argsort(-row, kind="stable")[:count].tolist()
    return {token: Logprob(float(row[token] - normaliser), at) for at, token in enumerate(best, 1)}


def work(args: TorchLlmArgs, connection: Connection) -> None:
    """Load the model, then run the loop until the caller is gone."""
    messages: queue.Queue[Any] = queue.Queue()
    try:
        executor = PyExecutor(args, messages, connection.send)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    threading.Thread(target=_read, args=(connection, messages), daemon=True).start()
    try:
        executor.loop()
    except BaseException:
        # Nothing catches what the drafter raises: the loop that decodes every request ends.
        traceback.print_exc()
        os._exit(1)


def _read(connection: Connection, messages: queue.Queue[Any]) -> None:
    while True:
        try:
            messages.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # as MPI ends the workers of a process that died
