"""One `tensorrt_llm.LLM`, the event loop of its requests, and what runs there for sessions."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from types import ModuleType
from typing import Any, TypeVar

from card.engines.interface import EngineError
from card.engines.tensorrt_llm.requests import NO_END_ID
from card.engines.tensorrt_llm.workers import Workers

_Result = TypeVar("_Result")

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SILENT = "TRTLLM_NO_USAGE_STATS"
"""Versions from 1.3 report how they are used unless it is set."""

_PROBE = {"max_tokens": 3, "end_id": NO_END_ID, "pad_id": 0, "ignore_eos": True, "top_k": 1}


def import_tensorrt_llm(devices: Sequence[int]) -> ModuleType:
    """Import the package with these CUDA devices alone in sight. Raises `EngineError`.

    The import opens the devices, and the workers that it spawns inherit what is open: the variable
    has no effect afterwards.
    """
    visible = ",".join(map(str, devices))
    if sys.modules.get("tensorrt_llm") is not None and os.environ.get(_VISIBLE) != visible:
        raise EngineError(
            f"tensorrt_llm was imported with {_VISIBLE}={os.environ.get(_VISIBLE)!r}; it cannot "
            f"be moved to {visible!r}: one process runs one model"
        )
    os.environ[_VISIBLE] = visible
    os.environ.setdefault(_SILENT, "1")
    try:
        return importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise EngineError(
            f"tensorrt_llm cannot be imported on devices {visible}: {error}; it needs an NVIDIA "
            "GPU and a Triton container that carries it "
            "(nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3)"
        ) from error


class Runtime:
    """A loaded model. Requests are made, read and aborted on its event loop and nowhere else."""

    def __init__(
        self, package: ModuleType, arguments: dict[str, Any], workers: Workers | None = None
    ) -> None:
        """Load the model, which takes a while. Raises `EngineError`.

        `workers` watches over the processes that it starts.
        """
        self.package = package
        self._workers = workers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tensorrt_llm requests", daemon=True
        )
        self._thread.start()
        try:
            self.llm = self.run(self._in_thread(lambda: package.LLM(**arguments)))
        except Exception as error:
            self._end_loop()
            if workers is not None:
                workers.close()
            raise EngineError(f"{arguments['model']} cannot be loaded: {error}") from error
        if workers is not None:
            workers.loaded()

    def notice_lost_worker(self) -> bool:
        """Whether a worker ended since the last call, and perhaps the engine with it."""
        return self._workers is not None and self._workers.notice_lost()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the event loop, from another thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """`run` for a plain function."""

        async def work() -> _Result:
            return function()

        return self.run(work())

    def generate(self, prompt: list[int], sampling: dict[str, Any]) -> Any:
        """Start a streamed request; on the event loop only. Returns its `RequestOutput`."""
        parameters = self.package.SamplingParams(**sampling)
        return self.llm.generate_async(prompt, parameters, streaming=True)

    async def probe(self, progress: Callable[[], None]) -> None:
        """Have a few tokens generated, whatever they are. Raises what the engine raises."""
        async for _ in self.generate([0], _PROBE):
            progress()

    def shutdown(self) -> None:
        """End what is under way, the engine's workers, and the event loop."""
        self.run(self._cancel_all())
        self.run(self._in_thread(self.llm.shutdown))
        if self._workers is not None:
            self._workers.close()
        self._end_loop()

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    def _end_loop(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class EngineStalledError(RuntimeError):
    """The engine has requests and gives no token."""


class SessionTasks:
    """All that runs for sessions on the event loop, as the loop's thread sees it."""

    def __init__(self, runtime: Runtime, stall_timeout_s: float) -> None:
        self._runtime = runtime
        self._stall_timeout_s = stall_timeout_s
        self._running: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._progress_s = time.monotonic()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it; on the event loop only."""
        if not self._running:
            self.progress()
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def probe(self) -> None:
        """See whether the engine still gives tokens; from another thread."""
        self._runtime.call(lambda: self.start(self._runtime.probe(self.progress)))

    def progress(self) -> None:
        """Tell that the engine answered."""
        self._progress_s = time.monotonic()

    def check(self) -> None:
        """Raise what a task raised, or `EngineStalledError`; from another thread.

        An engine that lost a worker is asked for a token: an idle one does not tell.
        """
        if self._failure is not None:
            raise self._failure
        if self._runtime.notice_lost_worker():
            self.probe()
        silence_s = time.monotonic() - self._progress_s
        if self._running and silence_s > self._stall_timeout_s:
            raise EngineStalledError(
                f"no token from the engine for {silence_s:.0f} s (tensorrt_llm.stall_timeout_s)"
            )

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()
