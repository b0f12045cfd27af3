"""The draft's loop: follow commits, re-root, propose, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from card.cache import ANY, Pool, SlotRequest, SlotWatch
from card.constraints.compiler import Constraint, GuideCompiler
from card.drafting.session import FollowedSession
from card.speculation.drafters import Drafter
from card.speculation.pacing import PACINGS


@dataclass(slots=True)
class DraftTimes:
    """Nanoseconds spent since the loop began: `busy` in passes, `idle` with sessions open but
    nothing to grow."""

    passes: int = 0
    busy: int = 0
    idle: int = 0


class DraftLoop:
    """Grows a tree for every open slot; call `step` again and again from one thread.

    drafters  by registry key; a request that names another one is decoded without candidates
    guides    compiles those of requests; None: candidates heed none
    apart     they take no cores, and no device, from the target
    pass_ms   what a pass of them takes while nobody else computes; 0: unknown
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        pool: Pool,
        guides: GuideCompiler | None = None,
        *,
        apart: bool = False,
        pass_ms: float = 0.0,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        pool.tell_draft_pass(pass_ms)
        self.times = DraftTimes()
        self._drafters = drafters
        self._guides = guides
        self._apart = apart
        self._pool = pool
        self._slots = [pool.draft_slot(index) for index in range(pool.geometry.slots)]
        self._watch = SlotWatch(pool)
        self._sessions: dict[int, FollowedSession] = {}
        self._idle_since: int | None = None
        self._clock_ns = clock_ns

    def step(self) -> bool:
        """One pass over all sessions that may grow; False if there was nothing to do."""
        started = self._clock_ns()
        if self._watch.look():
            self._drop_closed()
            self._follow_opened()
        may_run = self._take_turns()
        # Every drafter is asked, also for no session: what it runs on may have failed.
        passes = max([self._grow(name, may_run) for name in self._drafters], default=0)
        self._count_idle(started)
        if not passes:
            self._idle_since = started if self._sessions else None
            return False
        self.times.passes += passes
        self.times.busy += self._clock_ns() - started
        self._tell_times()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether nothing can be to do before a slot is opened or closed, or the target rings."""
        stopped = self._pool.draft_stopped
        return all(session.is_unwanted(all_stopped=stopped) for session in self._sessions.values())

    def abandon(self) -> None:
        """The pool is another: end every session."""
        for session in self._sessions.values():
            session.drafter.close(session.drafted)
        self._sessions.clear()

    def _take_turns(self) -> list[FollowedSession]:
        """Sessions that may run, up to date with what the target committed; the others wait. A
        session that the target wants no candidates of is left as it is."""
        may_run, stopped = [], self._pool.draft_stopped
        for session in self._sessions.values():
            wanted = not session.is_unwanted(all_stopped=stopped)
            if wanted:
                session.follow_commits()
            passes = session.allowed_passes() if wanted else 0
            if passes:
                session.drafted.passes = passes
                may_run.append(session)
            else:
                session.slot.count_time(runs=False)
        return may_run

    def _grow(self, name: str, sessions: list[FollowedSession]) -> int:
        """Let the drafter of this name propose; the passes that it made."""
        drafter = self._drafters[name]
        own = [session for session in sessions if session.drafter is drafter]
        proposed = drafter.propose([session.drafted for session in own])
        passes = 0
        for session, nodes in zip(own, proposed, strict=True):
            session.slot.count_time(runs=nodes is not None)
            passes = max(passes, session.grow(nodes))
        if any(session.is_awaited and not session.allowed_passes() for session in own):
            self._pool.slot_bell.ring()
        return passes

    def _tell_times(self) -> None:
        header = self._pool.header
        header["draft_busy_ns"] = self.times.busy
        header["draft_passes"] = self.times.passes

    def _count_idle(self, now: int) -> None:
        """Account for the time since the last step if that found nothing to do."""
        if self._idle_since is not None:
            self.times.idle += now - self._idle_since
            self._pool.header["draft_waiting_ns"] = self.times.idle
            self._idle_since = None

    def _drop_closed(self) -> None:
        gone = [
            index
            for index, session in self._sessions.items()
            if not session.slot.is_open(session.session_id)
        ]
        for index in gone:
            session = self._sessions.pop(index)
            session.drafter.close(session.drafted)

    def _follow_opened(self) -> None:
        for slot, session_id, request in self._watch.opened(self._slots, self._sessions):
            pacing, drafter = PACINGS[request.pacing], self._drafter_of(request)
            if request.growth == ANY and pacing.growth is not None:
                request = replace(request, growth=pacing.growth)
            if pacing.drafts and drafter is not None:
                self._sessions[slot.index] = FollowedSession.follow(
                    slot,
                    session_id,
                    request,
                    pacing,
                    drafter,
                    self._constraint(request),
                    apart=self._apart,
                )

    def _drafter_of(self, request: SlotRequest) -> Drafter | None:
        """What the request names, if this process has it."""
        if request.drafter == ANY:
            return next(iter(self._drafters.values()), None)
        return self._drafters.get(request.drafter)

    def _constraint(self, request: SlotRequest) -> Constraint | None:
        if request.guide is None or self._guides is None:
            return None
        return self._guides.constraint(request.guide)
