"""The caller's side: a worker process, requests into it, responses out of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorrt_llm.executor.result import RequestOutput, Response
from tensorrt_llm.executor.worker import Cancel, GenerationRequest, work
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.sampling_params import SamplingParams


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
        self._wait_until_loaded()
        threading.Thread(
            target=_dispatch, args=(self._connection, self._results, self), daemon=True
        ).start()

    def generate_async(
        self,
        inputs: Sequence[int] | dict[str, Any],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        **others: Any,
    ) -> RequestOutput:
        """Queue a request. Raises `RuntimeError` when shutting down, `ValueError` for a request
        without an end id or without room."""
        if self._is_shut_down:
            raise RuntimeError("LLM is shutting down")
        self._check_loop()
        parameters = sampling_params or SamplingParams()
        prompt = list(inputs["prompt_token_ids"] if isinstance(inputs, dict) else inputs)
        if not prompt or type(prompt[0]) is not int:
            raise ValueError("the prompt must be a list of int")
        if parameters.end_id is None:
            raise ValueError("without a tokenizer the sampling parameters must name an end_id")
        self._last_client_id += 1
        result = RequestOutput(self._last_client_id, prompt, self._abort)
        self._results[result.request_id] = result
        self._send(GenerationRequest(result.request_id, prompt, parameters, streaming))
        return result

    def shutdown(self) -> None:
        if not self._is_shut_down:
            self._is_shut_down = True
            self._send(None)
            self._worker.join()

    def _check_loop(self) -> None:
        """The real one works from several loops too; a product that uses several is wrong."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("stand-in: requests were made on two event loops")
        self._loop = loop

    def _abort(self, client_id: int) -> None:
        self._send(Cancel(client_id))

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise RuntimeError("the worker process is gone") from error

    def _wait_until_loaded(self) -> None:
        try:
            error = self._connection.recv()
        except EOFError:
            error = "the worker process ended while loading"
        if error is not None:
            raise RuntimeError(error)


def _dispatch(connection: Connection, results: dict[int, RequestOutput], llm: LLM) -> None:
    while True:
        try:
            responses: list[Response] = connection.recv()
        except (EOFError, OSError):
            break
        for response in responses:
            last = response.finish_reason is not None or response.error is not None
            result = results.pop(response.client_id) if last else results[response.client_id]
            result._put(response)
    llm._is_shut_down = True
    for client_id, result in list(results.items()):
        result._put(Response(client_id, [], [], error="the worker process died", is_fatal=True))
