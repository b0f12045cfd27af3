"""Slots and the queue of requests that wait for them.

`card` sees that a client left only if the client called `card` directly. In an ensemble Triton
reports a cancelled request only to the next model, when that model begins. So a waiting request
that streams gets an empty delta now and then. `postprocessing` takes the delta, checks whether the
client left, and marks the request's place in the pool as abandoned.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.cache import CardSlot, Finish, Pool, SlotRequest, SlotState
from card.serving.requests.delta import SIGN_NS, Delta, ScoredToken
from card.serving.requests.refusal import Refusal, queue_full

_PRESENCE_S = 0.5
"""Seconds between two checks whether a waiting client left."""


@dataclass
class Session:
    """One request in a slot; `read` is the number of committed tokens read so far."""

    slot: CardSlot
    session_id: int
    request: SlotRequest
    read: int = 0

    @property
    def remaining(self) -> int:
        """Tokens that the request may still get."""
        return self.request.max_tokens - self.read

    def finish(self) -> Finish:
        """Why the target stopped; valid once all committed tokens are read.

        The target stores the finish apart from the count, so a finish may be seen before the
        tokens that caused it.
        """
        finish = self.slot.finish(self.session_id)
        if finish is Finish.LENGTH and self.remaining:
            return Finish.RUNNING
        if finish is Finish.END_ID and not self._ends_with_end_id():
            return Finish.RUNNING
        return finish

    def _ends_with_end_id(self) -> bool:
        if self.read == 0:
            return False
        return int(self.slot.output(self.read - 1, self.read)[0]) in self.request.parameters.end_ids


@dataclass(frozen=True, eq=False)
class _Ticket:
    """A request in the queue: its place in the pool, and the slot that it will get."""

    place: int
    slot: asyncio.Future[CardSlot]


class Sessions:
    """All slots of the pool, and the queue. One event loop uses it."""

    def __init__(self, pool: Pool, queue_timeout_s: float) -> None:
        self._pool = pool
        self._queue_timeout_s = queue_timeout_s
        self._slots = [pool.card_slot(index) for index in range(pool.geometry.slots)]
        self._free = deque(slot for slot in self._slots if slot.state is SlotState.FREE)
        self._closing: dict[int, Session | None] = {
            slot.index: None for slot in self._slots if slot.state is not SlotState.FREE
        }
        self._places = deque(range(pool.geometry.slots, pool.geometry.places))
        self._waiting: deque[_Ticket] = deque()
        self._open: dict[int, Session] = {}
        self._read = np.zeros(pool.geometry.slots, np.int64)

    # --- admission ----------------------------------------------------------------------------

    @property
    def in_use(self) -> int:
        """Slots that are not free."""
        return len(self._open) + len(self._closing)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether the next request would be refused."""
        return not self._free and not self._places

    async def admit(
        self, request: SlotRequest, deadline_ns: int | None, seek: Callable[[int], bool]
    ) -> Session:
        """Open a session, and wait in the queue if no slot is free. `seek` is called now and then;
        it returns whether the client at that place of the pool left.

        Raises `Refusal`: `UNAVAILABLE` at once when the queue is full, or after waiting too long;
        `DEADLINE_EXCEEDED` at the request's own deadline; `CANCELLED` when the client left, which
        frees its place at once.
        """
        if self._free:
            slot = self._free.popleft()
        else:
            slot = await self._wait(deadline_ns, seek)
        session = Session(slot, self._pool.new_session_id(), request)
        slot.open(request, session.session_id)
        self._open[slot.index] = session
        self._read[slot.index] = 0
        return session

    def borrow_place(self) -> int | None:
        """Take a place in the queue for a request that waits for something else; `give_back` frees
        it. None: the queue is full."""
        return self._places.popleft() if self._places else None

    def give_back(self, place: int | None) -> None:
        """Free a borrowed place."""
        if place is not None:
            self._places.append(place)

    async def _wait(self, deadline_ns: int | None, seek: Callable[[int], bool]) -> CardSlot:
        if self.is_full:
            geometry = self._pool.geometry
            raise queue_full(geometry.slots, len(self._waiting), geometry.queue)
        limit_s = self._queue_timeout_s
        if deadline_ns is not None:
            limit_s = min(limit_s, (deadline_ns - time.monotonic_ns()) / 1e9)
        until_s = time.monotonic() + limit_s
        ticket = _Ticket(self._places.popleft(), asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        try:
            while (left_s := until_s - time.monotonic()) > 0:
                await asyncio.wait({ticket.slot}, timeout=min(left_s, _PRESENCE_S))
                if seek(ticket.place):
                    raise Refusal("CANCELLED", "the client left while its request waited")
                if ticket.slot.done():
                    return ticket.slot.result()
        except BaseException:
            self._give_up(ticket)
            raise
        self._give_up(ticket)
        if limit_s < self._queue_timeout_s:
            raise deadline_exceeded("waiting for a slot")
        raise Refusal(
            "UNAVAILABLE",
            f"no slot became free within {self._queue_timeout_s:g} s "
            "(limits.queue_timeout_s); try again later",
            reason="queue_timeout",
        )

    def _give_up(self, ticket: _Ticket) -> None:
        """Leave the queue; pass a slot that came too late to the next request."""
        if ticket.slot.done():
            self._hand_on(ticket.slot.result())
        else:
            self._waiting.remove(ticket)
            self._places.append(ticket.place)

    def _hand_on(self, slot: CardSlot) -> None:
        """Pass a free slot to the first request that still waits for one."""
        if not self._waiting:
            self._free.append(slot)
            return
        ticket = self._waiting.popleft()
        self._places.append(ticket.place)
        ticket.slot.set_result(slot)

    # --- following ----------------------------------------------------------------------------

    def with_news(self) -> list[Session]:
        """The open sessions with new commits, and those that the target finished."""
        records = self._pool.slots
        news = (records["commit_session_id"] == records["session_id"]) & (
            (records["committed"] != self._read) | (records["finish"] != Finish.RUNNING)
        )
        return [self._open[index] for index in np.flatnonzero(news).tolist() if index in self._open]

    def take(self, session: Session) -> tuple[list[int], list[bool], list[float]]:
        """Tokens committed since the last call, whether each was a candidate, log-probabilities."""
        slot, start = session.slot, session.read
        stop = slot.committed(session.session_id)
        session.read = self._read[slot.index] = stop
        return (
            slot.output(start, stop).tolist(),
            slot.is_accepted(start, stop).tolist(),
            slot.log_probabilities(start, stop).tolist(),
        )

    def likeliest(self, session: Session, start: int) -> list[list[tuple[int, float]]]:
        """The likeliest ids at each place of the output from `start` to the last token taken; empty
        if the request asks for none."""
        if not session.request.likeliest:
            return []
        return [session.slot.likeliest(place) for place in range(start, session.read)]

    def scored_prompt(self, session: Session, start: int, count: int) -> list[ScoredToken]:
        """The target's scores of `count` of the prompt's tokens, or as many as it has, from `start`
        on. There are none before the session's first commit."""
        slot = session.slot
        if not slot.committed(session.session_id):
            return []
        alike = session.request.likeliest > 0
        tokens, scored = session.request.prompt[start : start + count].tolist(), []
        for place, token in enumerate(tokens, start):
            likeliest = slot.likeliest_of_prompt(place) if alike and place else ()
            score = slot.prompt_log_probability(place) if place else None
            scored.append(ScoredToken(token, score, likeliest))
        return scored

    def abandoned(self) -> list[Session]:
        """The open sessions of clients that left, as `postprocessing` reported."""
        session_ids = self._pool.session_ids
        left: NDArray[np.bool_] = self._pool.abandoned[: session_ids.size] == session_ids
        return [self._open[index] for index in np.flatnonzero(left).tolist() if index in self._open]

    def close(self, session: Session) -> None:
        """End a session; its slot is free again once the target released it."""
        session.slot.close()
        self._closing[session.slot.index] = self._open.pop(session.slot.index)

    @property
    def closing(self) -> bool:
        """Whether closed slots wait for the target to release them."""
        return bool(self._closing)

    def reclaim(self, *, target_is_dead: bool) -> list[Session]:
        """Free the closed slots that the target released and serve the queue.

        Returns the sessions that ended; their counters are final until the slot is reused.
        """
        ended = []
        for index, session in list(self._closing.items()):
            slot = self._slots[index]
            if slot.reclaim(target_is_dead=target_is_dead):
                del self._closing[index]
                if session is not None:
                    ended.append(session)
                self._hand_on(slot)
        return ended


def deadline_exceeded(doing: str) -> Refusal:
    """The error of a request after its `timeout`."""
    return Refusal(
        "DEADLINE_EXCEEDED", f"timeout is over while {doing}; send a larger timeout (microseconds)"
    )


class Client(Protocol):
    """Sends the responses of one request."""

    def send(self, delta: Delta, *, last: bool) -> None:
        """Raises `UndeliverableError`."""

    def fail(self, refusal: Refusal) -> None:
        """Send an error as the last response; log it if it cannot be sent."""

    def is_gone(self) -> bool: ...


class WaitingClient:
    """The client of a request in the queue.

    Its session id is never the id of a session, so that it cannot be confused with a request that
    waited at its place before.

    sign  makes an empty delta from a place and a session id; None: the request does not stream
    """

    def __init__(
        self,
        client: Client,
        pool: Pool,
        sign: Callable[[int, int], Delta] | None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._client = client
        self._pool = pool
        self._sign = sign
        self._clock_ns = clock_ns
        self._session_id: int | None = None
        self._signed_ns = clock_ns()

    def seek(self, place: int | None) -> bool:
        """Send an empty delta if one is due; returns whether the client at this place is known to
        have left. Without a place only direct clients of `card` are known to leave."""
        if self._client.is_gone():
            return True
        if self._sign is None or place is None:
            return False  # a unary request gets only one response
        if self._pool.abandoned[place] == self._session_id:
            return True
        if self._clock_ns() - self._signed_ns >= SIGN_NS:
            if self._session_id is None:
                self._session_id = self._pool.new_session_id()
            self._client.send(self._sign(place, self._session_id), last=False)
            self._signed_ns = self._clock_ns()
        return False
