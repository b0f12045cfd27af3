"""Faults on a real service, one cell of a matrix at a time, and what must hold through each.

A cell is a victim, a blow, a moment and how often. While it is struck, clients stream; a witness
reads liveness and readiness all the time. `Ordeal.endure` returns what was wrong, in words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil
from fault_cells import VICTIMS, Blow, Cell, Moment
from running_service import Refused, RunningService, get

from card.cache import SlotState


@dataclass(frozen=True)
class Wish:
    """What one client asks for."""

    prompt: str
    decoding: str = "card"
    temperature: float = 0.0
    seed: int = 0


LONG = "\n".join(f"def step_{n}(value: int) -> int:\n    return value + {n}\n" for n in range(30))
WISHES = (
    Wish("def fibonacci(n):"),
    Wish("class Stack:\n    def __init__(self):\n", temperature=0.8, seed=7),
    Wish("def merge(left, right):\n    result = []\n    while", "draft_then_verify"),
    Wish(LONG, "pearl"),
)
MAX_TOKENS = 192
ANSWER_S = 120.0
"""A client that has heard nothing for so long hangs."""
BACK_S = 60.0
"""A service that is not back by then stays away; an idle machine brings it back within ten."""
MISSED_S = 1.0
"""Readiness may be out of date for so long."""
BLINK_S = 0.3
"""And be told once more from before, where the whole machine stood still; not for so long."""
_LOOK_S = 0.05


@dataclass
class Answer:
    """What one client got: its text so far and, if it failed, how."""

    wish: Wish
    text: str = ""
    error: str | None = None
    hangs: bool = False


@dataclass
class Tally:
    """Counts over many cells, for a verdict."""

    cells: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    slowest_back_s: dict[str, float] = field(default_factory=dict)
    """After one SIGKILL, by victim."""
    failures: list[str] = field(default_factory=list)


class Witness:
    """Reads /live and /ready again and again while a cell is struck."""

    def __init__(self, service: RunningService) -> None:
        self._root = f"http://127.0.0.1:{service.settings.serving.health_port}"
        self._struck: list[tuple[float, float, str, int]] = []
        self._doubts: dict[tuple[str, int], float] = {}
        self.complaints: set[str] = set()

    def struck(self, victim: str, pid: int, until_s: float) -> None:
        """The process `pid` of `victim` serves no client from now on, or until `until_s`."""
        self._struck.append((time.monotonic(), until_s, victim, pid))

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            live, _ = await asyncio.to_thread(get, f"{self._root}/live")
            if live != 200:
                self.complaints.add(f"/live answered {live}")
            asked_s = time.monotonic()
            ready, seen = await asyncio.to_thread(get, f"{self._root}/ready")
            self._judge(asked_s, time.monotonic(), ready, json.loads(seen or "{}"))
            await asyncio.sleep(_LOOK_S)

    def _judge(self, asked_s: float, told_s: float, ready: int, seen: dict[str, Any]) -> None:
        for since_s, until_s, victim, pid in self._struck:
            if asked_s < since_s + MISSED_S or told_s > until_s:
                continue
            serving = victim == "draft" and seen.get("state") == "degraded"
            if ready != 200 or serving or _pid_in(seen, victim) != pid:
                self._doubts.pop((victim, pid), None)
            elif asked_s - self._doubts.setdefault((victim, pid), asked_s) > BLINK_S:
                self.complaints.add(f"/ready said {seen.get('state')} without {victim}")


class Ordeal:
    """One service, struck again and again. What was right is asked once, of the target alone."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.tally = Tally()
        self._right: dict[Wish, str] = {}
        self._back_s = -math.inf

    async def prepare(self) -> None:
        """Ask the target alone for the text of every wish."""
        for wish in WISHES:
            self._right[wish] = await self.service.text(
                wish.prompt, decoding="autoregressive", **_sampling(wish)
            )

    async def stream_all(self) -> list[str]:
        """Every wish at once, undisturbed; what was wrong."""
        answers = [Answer(wish) for wish in WISHES]
        await asyncio.gather(*(read(self.service, answer) for answer in answers))
        return self._count(answers, errors_allowed=False)

    async def endure(self, cell: Cell) -> list[str]:
        """Strike once or twice, wait until all is well again; what was wrong."""
        await self.service.until(lambda: self.service.state == "ready", "it is well", BACK_S)
        await self.service.outlast_probation(self._back_s)  # or two cells would be one
        witness = Witness(self.service)
        watching = asyncio.create_task(witness.watch())
        answers = [Answer(wish) for wish in WISHES]
        try:
            reading = [asyncio.create_task(read(self.service, answer)) for answer in answers]
            if cell.moment is Moment.IDLE:
                await asyncio.gather(*reading)
                complaints = self._count(answers, errors_allowed=False)
            else:
                await self._await_moment(cell, answers)
                complaints = []
            began_s = time.monotonic()
            gone = await self._strike(cell, witness)
            if cell.moment is Moment.IDLE:
                answers = [Answer(wish) for wish in WISHES]
                reading = [asyncio.create_task(read(self.service, answer)) for answer in answers]
            complaints += await self._await_recovery(gone)
            self._remember(cell, time.monotonic() - began_s)
            await asyncio.gather(*reading)
            # A paused stub that had been sent something takes the server down when it goes on.
            complaints += await self._await_recovery(gone)
            complaints += self._count(answers, errors_allowed=cell.costs_answers)
            complaints += await self._await_wellbeing()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        complaints += sorted(witness.complaints)
        self.tally.cells[f"{cell.victim} {cell.blow.value}"] += 1
        self.tally.failures += [f"{cell}: {complaint}" for complaint in complaints]
        return complaints

    async def _await_moment(self, cell: Cell, answers: list[Answer]) -> None:
        if cell.moment is Moment.MID_STREAM:
            await self.service.until(lambda: all(a.text or a.error for a in answers), "text flows")
        else:
            with self._pool_states() as states:
                await self.service.until(lambda: SlotState.OPEN in states(), "a slot is open")

    async def _strike(self, cell: Cell, witness: Witness) -> set[int]:
        """The second blow falls on the successor as soon as there is one.

        Returns the processes that must not be needed any more.
        """
        struck: list[int] = []
        for _ in range(cell.times):
            victim = await self._next_victim(cell, struck)
            struck.append(victim)
            if cell.blow is Blow.PAUSE:
                witness.struck(cell.victim, victim, time.monotonic() + cell.pause_s)
                _signal(victim, signal.SIGSTOP)
                await asyncio.sleep(cell.pause_s)
                _signal(victim, signal.SIGCONT)
            else:
                witness.struck(cell.victim, victim, math.inf)
                _signal(victim, signal.SIGKILL if cell.blow is Blow.KILL else signal.SIGSTOP)
        return set() if cell.blow is Blow.PAUSE else set(struck)

    async def _next_victim(self, cell: Cell, struck: list[int]) -> int:
        """The victim's process: a new one, unless the one before was only paused and goes on."""
        found: int | None = None

        def is_there() -> bool:
            nonlocal found
            found = self._pid(cell.victim)
            paused = cell.blow is Blow.PAUSE and found is not None and _runs(found)
            return found is not None and (found not in struck or paused)

        await self.service.until(is_there, f"a process of {cell.victim}", BACK_S)
        assert found is not None
        return found

    async def _await_recovery(self, gone: set[int]) -> list[str]:
        """Ready again, by processes that live and are none of those that are `gone`."""
        limit_s = time.monotonic() + BACK_S
        while not self._is_well(gone):
            if time.monotonic() > limit_s:
                return [f"not back within {BACK_S:g} s: {self.service.health}"]
            await asyncio.sleep(_LOOK_S)
        self._back_s = time.monotonic()
        return []

    def _remember(self, cell: Cell, back_s: float) -> None:
        if cell.blow is Blow.KILL and cell.times == 1:
            slowest = self.tally.slowest_back_s
            slowest[cell.victim] = max(slowest.get(cell.victim, 0.0), back_s)

    async def _await_wellbeing(self) -> list[str]:
        """A request is answered rightly with the draft's help, and no slot stays in use."""
        complaints = []
        wish, hits = WISHES[0], 0
        limit_s = time.monotonic() + BACK_S
        while hits == 0:
            try:
                (reply,) = await self.service.ask(
                    text_input=wish.prompt, return_perf_metrics=True, **_sampling(wish)
                )
            except (Refused, grpc.RpcError) as error:
                return [f"/ready said ready, but a request was refused: {error}"]
            hits = int(reply.one("cache_hits"))
            if reply.text != self._right[wish]:
                complaints.append("a request after the recovery got a wrong text")
            if time.monotonic() > limit_s:
                complaints.append("the draft makes no candidates any more")
                break
        with self._pool_states() as states:
            while states() != {SlotState.FREE}:
                if time.monotonic() > limit_s:
                    complaints.append("a slot stays in use")
                    break
                await asyncio.sleep(_LOOK_S)
        return complaints

    def _count(self, answers: list[Answer], *, errors_allowed: bool) -> list[str]:
        complaints = []
        for answer in answers:
            right = self._right[answer.wish]
            if answer.hangs:
                outcome = "hung"
            elif answer.error is None:
                outcome = "right" if answer.text == right else "wrong"
            elif right.startswith(answer.text) and answer.error:
                outcome = "clear error"
            else:
                outcome = "wrong"
            self.tally.answers[outcome] += 1
            if outcome in ("hung", "wrong") or (outcome == "clear error" and not errors_allowed):
                complaints.append(
                    f"{outcome}: {answer.wish.prompt[:30]!r} ({answer.wish.decoding}) got "
                    f"{len(answer.text)} of {len(right)} characters, error {answer.error!r}"
                )
        return complaints

    # --- the service and its processes --------------------------------------------------------

    def _pid(self, victim: str) -> int | None:
        return _pid_in(self.service.health, victim)

    def _is_well(self, gone: set[int]) -> bool:
        seen = self.service.health
        if seen.get("state") != "ready":
            return False
        pids = [_pid_in(seen, victim) for victim in VICTIMS]
        return all(pid is not None and pid not in gone and _runs(pid) for pid in pids)

    @contextlib.contextmanager
    def _pool_states(self) -> Iterator[Any]:
        """A function that tells which states the slots are in."""
        pool = self.service.pool()
        try:
            yield lambda: set(pool.states.tolist())
        finally:
            pool.close()


async def read(service: RunningService, answer: Answer, max_tokens: int = MAX_TOKENS) -> None:
    """Stream what is wished for, to the end."""
    replies = service.stream(
        text_input=answer.wish.prompt,
        stream=True,
        decoding=answer.wish.decoding,
        client_timeout_s=ANSWER_S,
        **_sampling(answer.wish) | {"max_tokens": max_tokens},
    )
    try:
        async for reply in replies:
            answer.text += reply.text
    except Refused as error:
        answer.error = str(error)
    except grpc.RpcError as error:
        answer.hangs = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        answer.error = str(error.details())


def _sampling(wish: Wish) -> dict[str, Any]:
    return {
        "max_tokens": MAX_TOKENS,
        "temperature": wish.temperature,
        "seed": wish.seed,
        "end_id": -1,
    }


def _pid_in(seen: dict[str, Any], victim: str) -> int | None:
    if victim == "server":
        return seen.get("server_pid")
    pid: int | None = (seen.get("models") or {}).get(victim, {}).get("pid")
    return pid


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # replaced meanwhile
        os.kill(pid, number)
