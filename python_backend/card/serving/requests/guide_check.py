"""Guides are tried before a slot is opened for them: in another process, within a time limit."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from card.constraints import Guide
from card.serving.requests.refusal import Refusal

log = logging.getLogger(__name__)

FIELD = "guided_decoding_guide"
_KEPT = 64
"""Guides of which it is remembered whether they compile."""
_MOST_WAITING = 32
"""Guides that wait for their turn; one more is refused."""
_START_S = 30.0
"""How long the process may take to read the model's tokens."""
_LONGEST_ANSWER = 1 << 16


class GuideCheck:
    """Tries guides for the model at `path`, each for `limit_s` at most. Used from one event loop.

    The process is started for the first guide, and anew after one that broke it.
    """

    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._limit_s = limit_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._verdicts: OrderedDict[Guide, str | None] = OrderedDict()

    async def check(self, guide: Guide) -> None:
        """Raises `Refusal` saying what is wrong with the guide, and where."""
        if guide not in self._verdicts:
            if self._waiting >= _MOST_WAITING:
                raise Refusal(
                    "UNAVAILABLE",
                    f"{self._waiting} guides wait to be compiled; try again later",
                    reason="queue_full",
                )
            self._waiting += 1
            try:
                async with self._turn:
                    if guide not in self._verdicts:
                        self._remember(guide, await self._try(guide))
            finally:
                self._waiting -= 1
        self._verdicts.move_to_end(guide)
        if (problem := self._verdicts[guide]) is not None:
            what = f"{FIELD} cannot be compiled as {guide.kind}: {problem}"
            raise Refusal("INVALID_ARGUMENT", what, field=FIELD)

    async def close(self) -> None:
        """End the process. It also ends with the one that made it."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _remember(self, guide: Guide, problem: str | None) -> None:
        self._verdicts[guide] = problem
        if len(self._verdicts) > _KEPT:
            self._verdicts.popitem(last=False)

    async def _try(self, guide: Guide) -> str | None:
        """What is wrong with it; None: nothing."""
        process = await self._started()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(guide)).encode() + b"\n")
            return await asyncio.wait_for(_answer(process), self._limit_s)
        except (asyncio.TimeoutError, TimeoutError):
            await self.close()
            return (
                f"it takes longer than {self._limit_s:g} s (limits.guide_compile_s); "
                "make it smaller or simpler"
            )
        except (EOFError, ConnectionError):
            await self.close()
            return "it is too large or nested too deeply; make it smaller or simpler"
        except asyncio.CancelledError:
            await self.close()  # its answer would be taken for that to the next guide
            raise

    async def _started(self) -> Process:
        """The process, which knows the model's tokens. Raises `Refusal` if it never will."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        # Inside Triton's stub sys.executable is not a Python interpreter.
        self._process = process = await asyncio.create_subprocess_exec(
            Path(sys.prefix, "bin/python3"),
            *("-m", "card.constraints.check", self._path),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=_LONGEST_ANSWER,
            start_new_session=True,
        )
        try:
            problem = await asyncio.wait_for(_answer(process), _START_S)
        except (asyncio.TimeoutError, TimeoutError, EOFError, ConnectionError) as error:
            await self.close()
            log.error("what compiles guides does not start: %r", error)
            raise Refusal(
                "UNAVAILABLE", "guides cannot be compiled now; see the server's log"
            ) from error
        except asyncio.CancelledError:
            await self.close()
            raise
        if problem is not None:
            await self.close()
            raise Refusal(
                "INVALID_ARGUMENT",
                f"guided_decoding_guide_type is not offered for this model: {problem}",
                field="guided_decoding_guide_type",
            )
        return process


async def _answer(process: Process) -> str | None:
    """Raises `EOFError` if the process has ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise EOFError
    problem: str | None = json.loads(line)["problem"]
    return problem
