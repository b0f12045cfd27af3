"""Coroutines that serve sessions: none fails unseen; a silent or broken engine is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from card.engines.tensorrt_llm.runtime import Runtime


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

        An engine that lost a worker is asked for a token: while nobody decodes, it would not tell.
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
