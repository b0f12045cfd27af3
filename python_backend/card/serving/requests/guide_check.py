"""Compiles guides in another process, within a time limit, before `card` opens a slot for them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from card.cache import NO_SALT
from card.constraints import Guide
from card.serving.requests.refusal import Refusal
from card.serving.requests.sessions import deadline_exceeded

log = logging.getLogger(__name__)

FIELD = "guided_decoding_guide"
_KEPT = 64
"""Guides with a remembered result."""
_MOST_WAITING = 32
"""Most waiting guides; `GuideCheck` refuses one more."""
_PRESENCE_S = 0.25
"""Seconds between two checks whether the client of a waiting guide left."""
_START_S = 30.0
"""Most seconds in which the process reads the model's tokens."""
_LONGEST_WAIT = 10.0
"""Longest wall time of a guide on a busy machine, as a multiple of its limit of processor time."""
_LONGEST_ANSWER = 1 << 16


@dataclass(frozen=True, eq=False)
class _Ticket:
    """A waiting guide.

    client   the client that sent it, if known
    answer   what is wrong with the guide; None: nothing
    """

    guide: Guide
    client: bytes
    answer: asyncio.Future[str | None]


class _Tickets:
    """Waiting guides in the order of their turns: one of each client, then the next one of each. Of
    one client the shortest comes first, for length is all that is known of a guide's cost, and
    clients that give no salt are one client. If the queue is full, the client with the most guides
    loses its longest."""

    def __init__(self) -> None:
        self._of_clients: OrderedDict[bytes, list[_Ticket]] = OrderedDict()
        self._running = 0

    def add(self, ticket: _Ticket) -> None:
        """Raises `Refusal` if no more may wait."""
        own = self._of_clients.setdefault(ticket.client, [])
        insort(own, ticket, key=_length)
        waiting = self._running + sum(map(len, self._of_clients.values()))
        if waiting > _MOST_WAITING:
            most = max(self._of_clients.values(), key=len)
            longest = own[-1] if len(own) == len(most) else most[-1]
            self.drop(longest)
            full = Refusal(
                "UNAVAILABLE",
                f"{waiting - 1} guides wait to be compiled; try again later",
                reason="queue_full",
            )
            if longest is ticket:
                raise full
            longest.answer.set_exception(full)

    def take(self) -> _Ticket | None:
        """The next guide; its turn lasts until the next call."""
        self._running = 0
        if not self._of_clients:
            return None
        client, own = self._of_clients.popitem(last=False)
        ticket = own.pop(0)
        if own:
            self._of_clients[client] = own  # at the end, behind all other clients
        self._running = 1
        return ticket

    def drop(self, ticket: _Ticket) -> None:
        """Remove the guide from the queue, if it still waits."""
        own = self._of_clients.get(ticket.client, [])
        with suppress(ValueError):
            own.remove(ticket)
        if not own:
            self._of_clients.pop(ticket.client, None)


def _length(ticket: _Ticket) -> int:
    return len(ticket.guide.text)


class GuideCheck:
    """Compiles guides for the model at `path`, each in at most `limit_s` of processor time. One
    event loop uses it.

    The process starts with the first guide, and again after a guide that killed it.
    """

    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._limit_s = limit_s
        self._process: Process | None = None
        self._tickets = _Tickets()
        self._serving: asyncio.Task[None] | None = None
        self._answers: OrderedDict[Guide, str | None] = OrderedDict()

    async def check(
        self,
        guide: Guide,
        client: bytes = NO_SALT,
        deadline_ns: int | None = None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait for the guide's turn, and compile it.

        client       guides of the same client share turns
        deadline_ns  deadline of the request, on the monotonic clock
        is_gone      returns whether the client left; called now and then

        Raises `Refusal`: `INVALID_ARGUMENT` saying what is wrong with the guide, and where;
        `UNAVAILABLE` if too many guides wait; `DEADLINE_EXCEEDED`; `CANCELLED` if the client left.
        """
        if guide in self._answers:
            problem = self._answers[guide]
            self._answers.move_to_end(guide)
        else:
            answer = asyncio.get_running_loop().create_future()
            problem = await self._wait(_Ticket(guide, client, answer), deadline_ns, is_gone)
        if problem is not None:
            what = f"{FIELD} cannot be compiled as {guide.kind}: {problem}"
            raise Refusal("INVALID_ARGUMENT", what, field=FIELD)

    async def _wait(
        self, ticket: _Ticket, deadline_ns: int | None, is_gone: Callable[[], bool]
    ) -> str | None:
        self._tickets.add(ticket)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        try:
            while not ticket.answer.done():
                left_s = _PRESENCE_S
                if deadline_ns is not None:
                    left_s = min(left_s, (deadline_ns - time.monotonic_ns()) / 1e9)
                if left_s <= 0:
                    raise deadline_exceeded("its guide waits to be compiled")
                await asyncio.wait({ticket.answer}, timeout=left_s)
                if is_gone():
                    raise Refusal("CANCELLED", "the client left while its guide waited")
            return ticket.answer.result()
        finally:
            self._tickets.drop(ticket)
            ticket.answer.cancel()

    async def _serve(self) -> None:
        """Compile every waiting guide. A turn continues even if its client leaves, because a new
        process takes longer to start than a guide may take."""
        while (ticket := self._tickets.take()) is not None:
            try:
                if ticket.guide not in self._answers:
                    self._remember(ticket.guide, await self._try(ticket.guide))
            except Exception as error:
                if not ticket.answer.done():
                    ticket.answer.set_exception(error)
            else:
                if not ticket.answer.done():
                    ticket.answer.set_result(self._answers[ticket.guide])

    async def close(self) -> None:
        """Stop compiling and end the process. The process also ends with its parent."""
        if self._serving is not None:
            self._serving.cancel()
        await self._end_process()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    # Process.kill would reap a process that has ended, and lose how it ended.
                    os.kill(process.pid, signal.SIGKILL)
            await process.wait()

    def _remember(self, guide: Guide, problem: str | None) -> None:
        self._answers[guide] = problem
        if len(self._answers) > _KEPT:
            self._answers.popitem(last=False)

    async def _try(self, guide: Guide) -> str | None:
        """What is wrong with the guide; None: nothing."""
        process = await self._started()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(guide)).encode() + b"\n")
            return await asyncio.wait_for(_answer(process), _LONGEST_WAIT * self._limit_s)
        except (asyncio.TimeoutError, TimeoutError, EOFError, ConnectionError) as error:
            await self._end_process()
            if isinstance(error, EOFError) and process.returncode != -signal.SIGPROF:
                return "it is too large or nested too deeply; make it smaller or simpler"
            return (
                f"it takes longer than {self._limit_s:g} s (limits.guide_compile_s); "
                "make it smaller or simpler"
            )

    async def _started(self) -> Process:
        """The process, once it has read the model's tokens. Raises `Refusal` if that fails."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        # Inside Triton's stub sys.executable is not a Python interpreter.
        self._process = process = await asyncio.create_subprocess_exec(
            Path(sys.prefix, "bin/python3"),
            *("-m", "card.constraints.check", self._path, str(self._limit_s)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=_LONGEST_ANSWER,
            start_new_session=True,
        )
        try:
            problem = await asyncio.wait_for(_answer(process), _START_S)
        except (asyncio.TimeoutError, TimeoutError, EOFError, ConnectionError) as error:
            await self._end_process()
            log.error("the process that compiles guides does not start: %r", error)
            raise Refusal(
                "UNAVAILABLE", "guides cannot be compiled now; see the server's log"
            ) from error
        if problem is not None:
            await self._end_process()
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
