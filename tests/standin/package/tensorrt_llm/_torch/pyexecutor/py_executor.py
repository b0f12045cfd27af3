"""The executor's loop without overlap, in the order in which the drafter meets it."""

from __future__ import annotations

import queue
from collections.abc import Callable

from numpy.typing import NDArray

from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequest, LlmRequestState
from tensorrt_llm._torch.pyexecutor.model_engine import ModelEngine
from tensorrt_llm._torch.pyexecutor.sampler import TorchSampler, top_logprobs
from tensorrt_llm._torch.pyexecutor.scheduler import ScheduledRequests
from tensorrt_llm.executor.result import Logprob, Response
from tensorrt_llm.executor.worker import Cancel, GenerationRequest
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs


class PyExecutor:
    def __init__(
        self,
        args: TorchLlmArgs,
        model: ModelEngine,
        messages: queue.Queue[object],
        send: Callable[[list[Response]], None],
    ) -> None:
        self._args = args
        self._model = model
        self._messages = messages
        self._send = send
        self._sampler = TorchSampler()
        config = args.speculative_config
        self._drafter = getattr(config, "drafter", None)
        self._draft_len = 0 if config is None else config.max_draft_len
        self._active: list[LlmRequest] = []
        self._waiting: list[GenerationRequest] = []
        self._next_request_id = args.max_batch_size
        self._refused: list[Response] = []

    def loop(self) -> None:
        while self._fetch():
            self._step()

    # --- 1. requests --------------------------------------------------------------------------

    def _fetch(self) -> bool:
        """Read what arrived, blocking while idle; False at the end."""
        while True:
            idle = not self._active and not self._waiting and not self._refused
            try:
                message = self._messages.get(block=idle)
            except queue.Empty:
                break
            if message is None:
                return False
            if isinstance(message, Cancel):
                self._cancel(message.client_id)
            elif isinstance(message, GenerationRequest):
                self._waiting.append(message)
        while self._waiting and len(self._active) < self._args.max_batch_size:
            self._activate(self._waiting.pop(0))
        return True

    def _cancel(self, client_id: int) -> None:
        for request in self._active:
            if request.py_client_id == client_id:
                request.is_cancelled = True
        for message in list(self._waiting):
            if message.id == client_id:
                self._waiting.remove(message)
                self._refused.append(Response(client_id, [], [], "cancelled"))

    def _activate(self, message: GenerationRequest) -> None:
        prompt, parameters = message.prompt_token_ids, message.sampling_params
        room = (self._args.max_seq_len or 1 << 30) - len(prompt)
        wrong = [token for token in prompt if not 0 <= token < self._model.vocabulary]
        if room < 1 or wrong:
            error = f"prompt of {len(prompt)} tokens, {wrong[:3]} not in the vocabulary"
            self._refused.append(Response(message.id, [], [], error=error))
            return
        request = LlmRequest(
            self._next_request_id, message.id, prompt, parameters, min(parameters.max_tokens, room)
        )
        self._next_request_id += 1
        request.session = self._model.open()
        self._active.append(request)

    # --- 2. to 5. a pass ----------------------------------------------------------------------

    def _step(self) -> None:
        drafter = self._drafter
        drafts = drafter is not None and drafter.should_use_spec_decode(
            self._active, self._args.max_batch_size, self._args.max_num_tokens, self._draft_len
        )
        self._prepare_draft_requests(drafts)
        scheduled = ScheduledRequests()
        for request in self._active:
            generates = request.state is LlmRequestState.GENERATION_IN_PROGRESS
            found = scheduled.generation_requests if generates else scheduled.context_requests
            found.append(request)
        if drafts:
            drafter.prepare_draft_tokens(scheduled, None)
            self._pad(scheduled)
        self._prefill(scheduled.context_requests)
        self._verify(scheduled.generation_requests)
        self._respond()

    def _prepare_draft_requests(self, drafts: bool) -> None:
        """Zeros in place of the drafts of the pass before, so that room is reserved."""
        for request in self._active:
            if request.state is LlmRequestState.GENERATION_IN_PROGRESS:
                request.py_last_draft_tokens = request.py_draft_tokens
                request.py_draft_tokens = [0] * self._draft_len if drafts else []
                request.py_draft_pages_allocated = len(request.py_draft_tokens)

    def _pad(self, scheduled: ScheduledRequests) -> None:
        """To the same length for all, in place and right after the hook."""
        pad = getattr(self._drafter, "pad_draft_tokens_for_cuda_graph", None)
        if pad is not None:
            pad(scheduled)
        else:
            for request in scheduled.generation_requests:
                missing = self._draft_len - len(request.py_draft_tokens)
                request.py_draft_tokens.extend(0 for _ in range(missing))
        for request in scheduled.generation_requests:
            drafted = request.py_draft_tokens
            if len(drafted) != self._draft_len:
                raise RuntimeError(f"shape mismatch: {len(drafted)} draft rows in {drafted}")
            if any(type(t) is not int or not 0 <= t < self._model.vocabulary for t in drafted):
                raise RuntimeError(f"index out of range: {drafted}")

    def _prefill(self, requests: list[LlmRequest]) -> None:
        for request in requests:
            row = self._model.prefill(request.session, request.get_tokens(0))
            request.state = LlmRequestState.GENERATION_IN_PROGRESS
            self._accept(request, [row])

    def _verify(self, requests: list[LlmRequest]) -> None:
        if not requests:
            return
        batch = [(r.session, [r.get_tokens(0)[-1], *r.py_draft_tokens]) for r in requests]
        for index, (request, rows) in enumerate(
            zip(requests, self._model.forward(batch), strict=True)
        ):
            request.py_batch_idx = index
            before = request.get_num_tokens(0)
            self._accept(request, rows)
            added = request.get_num_tokens(0) - before
            request.py_num_accepted_draft_tokens = added - 1
            self._model.commit_kv(request.session, added)

    def _accept(self, request: LlmRequest, rows: list[NDArray]) -> None:
        """Sample every row; a draft token is accepted while it equals the token sampled there."""
        sampled = [self._sampler.sample(request, row) for row in rows]
        wanted = request.sampling_params.logprobs
        for step, token in enumerate(sampled):
            request.add_new_token(token)
            if wanted is not None:
                request.logprobs.append(top_logprobs(rows[step], wanted))
            ends = [request.py_end_id, *(request.sampling_params.stop_token_ids or ())]
            if token in ends:
                request.finish_reason = "stop"
            elif len(request.output) >= request.py_max_new_tokens:
                request.finish_reason = "length"
            drafted = request.py_draft_tokens[step] if step + 1 < len(rows) else None
            if request.finish_reason is not None or token != drafted:
                break
        request.py_decoding_iter += 1

    def _respond(self) -> None:
        responses, self._refused = self._refused, []
        for request in list(self._active):
            if request.is_cancelled and request.finish_reason is None:
                request.finish_reason = "cancelled"
            new = request.output[request.reported :]
            told = [
                {token: Logprob(value, rank) for rank, (token, value) in enumerate(row.items(), 1)}
                for row in request.logprobs[request.reported :]
            ]
            request.reported += len(new)
            responses.append(Response(request.py_client_id, new, told, request.finish_reason))
            if request.finish_reason is not None:
                request.state = LlmRequestState.GENERATION_COMPLETE
                self._active.remove(request)
                self._model.close(request.session)
        if responses:
            self._send(responses)
