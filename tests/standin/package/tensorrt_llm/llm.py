"""The caller's side: a worker process, requests into it, responses out of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorrt_llm.executor import GenerationRequest, Logprob, Response, work
from tensorrt_llm.llmapi import RequestError, SamplingParams, TorchLlmArgs


@dataclass(slots=True)
class CompletionOutput:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None


class RequestOutput:
    """Made on a running event loop and read there; grows with every response and yields itself."""

    def __init__(self, request_id: int, abort: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.outputs = [CompletionOutput()]
        self.finished = False
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._responses: asyncio.Queue[Response] = asyncio.Queue()

    def abort(self) -> None:
        self._abort(self.request_id)

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        response = await self._responses.get()
        if response.error is not None:
            raise (RuntimeError if response.is_fatal else RequestError)(response.error)
        output = self.outputs[0]
        output.token_ids.extend(response.token_ids)
        output.logprobs.extend(response.logprobs)
        output.finish_reason = response.finish_reason
        self.finished = response.finish_reason is not None
        return self

    def _put(self, response: Response) -> None:
        """From the thread that reads the worker."""
        self._loop.call_soon_threadsafe(self._responses.put_nowait, response)


class LLM:
    """One loaded model in a worker process of its own, into which the arguments are pickled."""

    def __init__(self, model: str, **arguments: Any) -> None:
        self.args = TorchLlmArgs(model=model, **arguments)
        if self.args.speculative_config is not None and not self.args.disable_overlap_scheduler:
            raise ValueError("stand-in: a user-provided drafter needs the overlap scheduler off")
        context = multiprocessing.get_context("spawn")
        # Inside Triton's stub sys.executable is not a Python interpreter.
        context.set_executable(str(Path(sys.prefix, "bin/python3")))
        self._connection, theirs = context.Pipe()
        self._worker = context.Process(target=work, args=(self.args, theirs), daemon=True)
        self._worker.start()
        theirs.close()
        self._results: dict[int, RequestOutput] = {}
        self._last_client_id = 1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_shut_down = False
        self._sending = threading.Lock()
        try:
            error = self._connection.recv()
        except EOFError:
            error = "the worker process ended while loading"
        if error is not None:
            raise RuntimeError(error)
        threading.Thread(target=self._dispatch, daemon=True).start()

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams, *, streaming: bool = False
    ) -> RequestOutput:
        """Queue a request. Raises `RuntimeError` when shutting down, `ValueError` for a request
        without an end id."""
        if self._is_shut_down:
            raise RuntimeError("LLM is shutting down")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):  # the real one allows it; a product that does is wrong
            raise RuntimeError("stand-in: requests were made on two event loops")
        self._loop = loop
        if sampling_params.end_id is None:
            raise ValueError("without a tokenizer the sampling parameters must name an end_id")
        self._last_client_id += 1
        result = RequestOutput(self._last_client_id, self._send)
        self._results[result.request_id] = result
        self._send(GenerationRequest(result.request_id, list(inputs), sampling_params))
        return result

    def shutdown(self) -> None:
        if not self._is_shut_down:
            self._is_shut_down = True
            self._send(None)
            self._worker.join()

    def _send(self, message: object) -> None:
        """A request, the client id of one that is cancelled, or None: the end."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise RuntimeError("the worker process is gone") from error

    def _dispatch(self) -> None:
        while True:
            try:
                responses: list[Response] = self._connection.recv()
            except (EOFError, OSError):
                break
            for response in responses:
                last = response.finish_reason is not None or response.error is not None
                results = self._results
                (results.pop if last else results.__getitem__)(response.client_id)._put(response)
        self._is_shut_down = True
        for client_id, result in list(self._results.items()):
            result._put(Response(client_id, error="the worker process died", is_fatal=True))
