"""A runtime whose every response the test gives: the loops beside it run for real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from card.engines.tensorrt_llm.runtime import Runtime

LIMIT_S = 30.0


class RequestError(RuntimeError):
    """As the runtime's: one request failed."""


class ScriptedOutput:
    """A request; `give` answers it, from any thread."""

    def __init__(self, request_id: int, prompt: list[int], sampling: Any) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.outputs = [SimpleNamespace(token_ids=[], logprobs=[], finish_reason=None)]
        self.finished = False
        self.was_aborted = False
        self.answers_abort = True
        self._given: asyncio.Queue[Any] = asyncio.Queue()

    def abort(self) -> None:
        self.was_aborted = True
        if self.answers_abort:
            self._given.put_nowait(([], [], "cancelled"))

    def __aiter__(self) -> ScriptedOutput:
        return self

    async def __anext__(self) -> ScriptedOutput:
        if self.finished:
            raise StopAsyncIteration
        given = await self._given.get()
        if isinstance(given, Exception):
            raise given
        tokens, logprobs, reason = given
        self.outputs[0].token_ids.extend(tokens)
        self.outputs[0].logprobs.extend(logprobs)
        if reason is not None:
            self.outputs[0].finish_reason = reason
            self.finished = True
        return self


class ScriptedRuntime(Runtime):
    """All requests so far in `requests`, oldest first; with `loses_worker` a worker ended."""

    def __init__(self) -> None:
        self.requests: list[ScriptedOutput] = []
        self.was_shut_down = False
        self.loses_worker = False
        package: Any = SimpleNamespace(
            LLM=lambda **_: SimpleNamespace(
                generate_async=self._generate_async, shutdown=self._shut_down
            ),
            SamplingParams=lambda **fields: SimpleNamespace(**fields),
            llmapi=SimpleNamespace(RequestError=RequestError),
        )
        super().__init__(package, {"model": "scripted"})

    def give(
        self,
        output: ScriptedOutput,
        tokens: list[int],
        reason: str | None = None,
        likelihoods: list[dict[int, float]] | None = None,
    ) -> None:
        """Answer with tokens, log-probabilities by id for each, and perhaps the end."""
        told = [
            {token: SimpleNamespace(logprob=value) for token, value in row.items()}
            for row in likelihoods or []
        ]
        self.call(lambda: output._given.put_nowait((tokens, told, reason)))

    def fail(self, output: ScriptedOutput, error: Exception) -> None:
        self.call(lambda: output._given.put_nowait(error))

    def notice_lost_worker(self) -> bool:
        lost, self.loses_worker = self.loses_worker, False
        return lost

    def until(self, holds: Callable[[], object], step: Callable[[], object]) -> None:
        """Step until it holds."""
        limit = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < limit, "it never came to hold"
            step()

    def settle(self) -> None:
        """Let the event loop do all that is ready."""

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.run(turns())

    def _generate_async(self, prompt: list[int], sampling: Any, streaming: bool) -> ScriptedOutput:
        assert streaming
        output = ScriptedOutput(len(self.requests) + 2, prompt, sampling)
        self.requests.append(output)
        return output

    def _shut_down(self) -> None:
        self.was_shut_down = True
