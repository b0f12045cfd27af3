"""The one task that answers all requests: it follows the commit counters of all slots.

A bell in the pool wakes it when a session begins or ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from card.cache import Bell, Finish
from card.serving.requests.refusal import GUIDE_FAILURES, Refusal, UndeliverableError, guide_failed
from card.serving.requests.sessions import Client, Session, Sessions, deadline_exceeded
from card.serving.requests.streams import Gathering, Stream
from card.serving.requests.trace import Trace

_WAIT_S = 0.1
"""Seconds between two checks whether the thread must stop."""


class Listener:
    """Calls `heard` on `loop` after a ring; several rings may cause one call."""

    def __init__(
        self, bell: Bell, loop: asyncio.AbstractEventLoop, heard: Callable[[], None]
    ) -> None:
        self._bell = bell
        self._loop = loop
        self._heard = heard
        self._stopping = False
        self._rings = bell.rings  # read before the thread begins, so that no ring is lost
        self._thread = threading.Thread(target=self._listen, name="commits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stopping = True
        self._thread.join()

    def _listen(self) -> None:
        while not self._stopping:
            self._bell.wait(self._rings, _WAIT_S)
            if (now := self._bell.rings) != self._rings:
                self._rings = now
                self._loop.call_soon_threadsafe(self._heard)


log = logging.getLogger(__name__)

TICK_S = 0.002
LONGEST_PAUSE_S = 0.01
"""Longest pause between two ticks, for deadlines; every tick takes 0.1 ms of the engines' cores."""
_SCORED_A_TICK = 64
"""The prompts' tokens for which a tick writes scores. With their rivals those of a long prompt are
megabytes, and all other streams wait while a tick takes."""
_PRESENCE_NS = 100_000_000
"""Interval of the checks whether clients left."""
_MOST_TARGETS_LOST = 2
"""A session is ended after this many target deaths without a new token of it, because it may cause
them. A third death would make the supervisor restart the whole server."""


class Ledger(Protocol):
    """Counts events for the metrics."""

    def answered(self, session: Session, outcome: str) -> None: ...

    def committed(self, session: Session, tokens: int, now_ns: int) -> None: ...

    def ended(self) -> None: ...

    def occupancy(self, slots: int, queue: int) -> None: ...


@dataclass
class Answer:
    """The state of one request's answer.

    deadline_ns          on the monotonic clock, if it has one
    trace                reports its speculation; None if the request does not ask for it
    targets_lost_before  lost targets that the follower had counted at the request's last token
    """

    client: Client
    stream: Stream
    session: Session
    deadline_ns: int | None
    trace: Trace | None = None
    targets_lost_before: int = 0


class Follower:
    """Reads the commit counters of all slots when a delta may be due, or when a session begins or
    ends. It sleeps while no session is open.

    While the target is dead the streams wait, because a reloaded target continues behind the last
    commit. After `limit_s` the streams get an error.
    """

    def __init__(
        self,
        sessions: Sessions,
        ledger: Ledger,
        target_is_dead: Callable[[], bool],
        targets_lost: Callable[[], int],
        limit_s: float,
        gathering: Gathering,
        tell_full: Callable[[bool], None],
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        """`targets_lost` returns the number of target processes that ended so far. The follower
        calls `tell_full` when the queue becomes full, and when it stops being full."""
        self._sessions = sessions
        self._ledger = ledger
        self._target_is_dead = target_is_dead
        self._count_lost = targets_lost
        self._targets_lost = 0
        self._limit_ns = int(limit_s * 1e9)
        self._gathering = gathering
        self._answers: dict[int, Answer] = {}
        self._woken = asyncio.Event()
        self._next_presence_ns = 0
        self._dead_since_ns: int | None = None
        self._tell_full = tell_full
        self._longest_pause_s = longest_pause_s
        self._told_full = False
        self._owes_scores = False
        self._told_occupancy = (0, 0)

    def follow(self, answer: Answer) -> None:
        """Answer a request of a newly opened session."""
        answer.targets_lost_before = self._targets_lost = self._count_lost()
        self._answers[answer.session.slot.index] = answer
        self.wake()

    def wake(self) -> None:
        """Tick at once; call it on the event loop only."""
        self._woken.set()

    async def run(self) -> None:
        """Tick for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._answers and not self._sessions.closing:
                await self._woken.wait()
            self._woken.clear()
            self.tick(time.monotonic_ns())
            alarm = loop.call_later(self.pause_s(time.monotonic_ns()), self.wake)
            await self._woken.wait()
            alarm.cancel()

    def tick(self, now_ns: int) -> None:
        """Check all open sessions once: commits, deadlines, cancelled clients, dead engines."""
        scores_left = _SCORED_A_TICK
        for session in self._sessions.with_news():
            answer = self._answers[session.slot.index]
            if not session.read and answer.stream.request.return_prompt_log_probs:
                scores_left -= self._score_prompt(answer, scores_left)
                if scores_left <= 0:
                    continue  # with the next tick
            self._take_commits(answer, now_ns)
        self._owes_scores = scores_left <= 0
        gather_ns = self._gather_ns()  # once: its streams may end below
        for answer in list(self._answers.values()):
            if answer.trace is not None:
                answer.stream.follow(answer.trace.look(now_ns))
            is_late = answer.deadline_ns is not None and answer.deadline_ns <= now_ns
            if is_late and not answer.stream.finished:
                self._fail(answer, deadline_exceeded("decoding"))
            elif answer.stream.is_due(now_ns, gather_ns[answer.stream.is_for_device]):
                self._respond(answer, now_ns)
        for session in self._sessions.abandoned():
            self._fail(self._answers[session.slot.index], _left())
        if now_ns >= self._next_presence_ns:
            self._next_presence_ns = now_ns + _PRESENCE_NS
            self._look_around(now_ns)
        if self._sessions.closing:
            self._reclaim()
        occupancy = (self._sessions.in_use, self._sessions.waiting)
        if occupancy != self._told_occupancy:
            self._told_occupancy = occupancy
            self._ledger.occupancy(*occupancy)
        if (full := self._sessions.is_full) != self._told_full:
            self._told_full = full
            self._tell_full(full)

    def pause_s(self, now_ns: int) -> float:
        """Seconds until the next delta is due, or more scores of prompts can be written."""
        if self._owes_scores:
            return TICK_S
        gather_ns = self._gather_ns()
        begun = (answer.stream for answer in self._answers.values() if answer.session.read)
        soonest_ns = min(
            (stream.due_ns(gather_ns[stream.is_for_device]) for stream in begun), default=math.inf
        )
        return min(max((soonest_ns - now_ns) / 1e9, TICK_S), self._longest_pause_s)

    def _gather_ns(self) -> dict[bool, int]:
        """Gathering interval of deltas with the present number of streams; key: whether a device
        drafts for the stream."""
        streams = sum(answer.stream.request.stream for answer in self._answers.values())
        return {
            for_device: self._gathering.interval_ns(streams, for_device=for_device)
            for for_device in (False, True)
        }

    def fail_all(self, refusal: Refusal) -> None:
        """End every open stream with an error."""
        for answer in list(self._answers.values()):
            self._fail(answer, refusal)

    def _score_prompt(self, answer: Answer, count: int) -> int:
        """Put the scores of the prompt's next tokens into the answer; returns their number, at most
        `count`."""
        stream = answer.stream
        scored = self._sessions.scored_prompt(answer.session, stream.prompt_scored, max(count, 0))
        stream.score_prompt(scored)
        return len(scored)

    def _take_commits(self, answer: Answer, now_ns: int) -> None:
        session, stream = answer.session, answer.stream
        start = session.read
        tokens, accepted, log_probs = self._sessions.take(session)
        likeliest = self._sessions.likeliest(session, start)
        answer.targets_lost_before = self._targets_lost
        if tokens and tokens[-1] in session.request.parameters.end_ids:
            tokens, accepted = tokens[:-1], accepted[:-1]  # an end id is no part of the text
        stream.push(tokens, accepted, log_probs, now_ns, likeliest)
        self._ledger.committed(session, len(tokens), now_ns)
        finish = session.finish()
        if stream.finished:  # by a stop word; the session's own finish does not matter then
            return
        if finish is Finish.FAILED:
            self._fail(
                answer,
                Refusal("INTERNAL", "the target failed on this request; see the server's log"),
            )
        elif finish in GUIDE_FAILURES:
            self._fail(answer, guide_failed(finish))
        elif finish is not Finish.RUNNING:
            stream.finish("stop" if finish is Finish.END_ID else "length")

    def _respond(self, answer: Answer, now_ns: int) -> None:
        session, stream = answer.session, answer.stream
        delta = stream.take(session.slot.index, session.session_id, session.slot.counters(), now_ns)
        if stream.finished:  # the slot is free before the client reads the last delta
            self._close(answer)
        try:
            answer.client.send(delta, last=stream.finished)
        except UndeliverableError as error:
            log.error("a response of slot %d was lost: %s", session.slot.index, error)
            lost = Refusal("INTERNAL", "a response could not be sent; see the server's log")
            if not stream.finished:
                self._close(answer)
            self._tell_failed(answer, lost)
        else:
            if stream.finished:
                self._ledger.answered(session, stream.finish_reason)

    def _fail(self, answer: Answer, refusal: Refusal) -> None:
        self._close(answer)
        self._tell_failed(answer, refusal)

    def _tell_failed(self, answer: Answer, refusal: Refusal) -> None:
        self._ledger.answered(answer.session, refusal.code.lower())
        answer.client.fail(refusal)

    def _close(self, answer: Answer) -> None:
        del self._answers[answer.session.slot.index]
        self._sessions.close(answer.session)

    def _look_around(self, now_ns: int) -> None:
        for answer in list(self._answers.values()):
            if answer.client.is_gone():
                self._fail(answer, _left())
        self._give_up_what_kills()
        if not self._target_is_dead():
            self._dead_since_ns = None
        elif self._dead_since_ns is None:
            self._dead_since_ns = now_ns
        elif now_ns - self._dead_since_ns > self._limit_ns:
            self.fail_all(
                Refusal(
                    "UNAVAILABLE",
                    f"the target model has been down for {self._limit_ns / 1e9:g} s "
                    "(serving.load_timeout_s); try again later",
                )
            )

    def _give_up_what_kills(self) -> None:
        """End sessions during which too many targets died."""
        self._targets_lost = self._count_lost()
        for answer in list(self._answers.values()):
            if self._targets_lost - answer.targets_lost_before >= _MOST_TARGETS_LOST:
                self._fail(
                    answer,
                    Refusal(
                        "INTERNAL",
                        f"the target model died {_MOST_TARGETS_LOST} times without a token of this "
                        "request in between; see the server's log",
                    ),
                )

    def _reclaim(self) -> None:
        if self._sessions.reclaim(target_is_dead=self._target_is_dead()):
            self._ledger.ended()


def _left() -> Refusal:
    return Refusal("CANCELLED", "the client left")
