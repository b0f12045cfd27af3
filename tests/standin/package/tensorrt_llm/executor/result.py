"""What a caller gets: an object that grows with every response and yields itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm.executor.utils import RequestError


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _last_token_ids_len: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """One message of the worker about one request."""

    client_id: int
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str | None = None
    error: str | None = None
    is_fatal: bool = False


class RequestOutput:
    """Made on a running event loop and read there."""

    def __init__(
        self, request_id: int, prompt_token_ids: list[int], abort: Callable[[int], None]
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput(0)]
        self.finished = False
        self._abort = abort
        self._aborted = False
        self._loop = asyncio.get_running_loop()
        self._responses: asyncio.Queue[Response] = asyncio.Queue()

    def abort(self) -> None:
        self._aborted = True
        self._abort(self.request_id)

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        response = await self._responses.get()
        if response.error is not None:
            raise (RuntimeError if response.is_fatal else RequestError)(response.error)
        output = self.outputs[0]
        output._last_token_ids_len = len(output.token_ids)
        output.token_ids.extend(response.token_ids)
        output.logprobs.extend(response.logprobs)
        if response.finish_reason is not None:
            output.finish_reason = response.finish_reason
            self.finished = True
        return self

    def _put(self, response: Response) -> None:
        """From the thread that reads the worker."""
        self._loop.call_soon_threadsafe(self._responses.put_nowait, response)
