"""The draft's loop: follow commits, re-root, grow, publish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from card.cache import Decoding, Pool, SlotRequest, SlotWatch
from card.constraints.compiler import Constraint, GuideCompiler
from card.drafting.session import LONGEST_COMMIT, DraftSession
from card.drafting.width import Width
from card.engines import Engine, Rows
from card.engines.options import DRAFT_ROWS
from card.settings import Settings, SpeculationSettings


@dataclass(slots=True)
class DraftTimes:
    """Nanoseconds spent since the loop began, by phase; `idle` with sessions open but nothing to
    grow."""

    passes: int = 0
    choose: int = 0
    forward: int = 0
    grow: int = 0
    idle: int = 0

    @property
    def busy(self) -> int:
        return self.choose + self.forward + self.grow


class DraftLoop:
    """Grows a tree for every open slot; call `step` again and again from one thread."""

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        settings: Settings,
        guides: GuideCompiler | None = None,
    ) -> None:
        """`guides` compiles those of requests; None: candidates heed none."""
        self.times = DraftTimes()
        self._engine = engine
        self._pool = pool
        self._settings = settings
        self._guides = guides
        self._slots = [pool.draft_slot(index) for index in range(pool.geometry.slots)]
        self._watch = SlotWatch(pool)
        self._sessions: dict[int, DraftSession] = {}
        self._idle_since: int | None = None
        self._shares: dict[int, tuple[SpeculationSettings, Width]] = {}

    def step(self) -> bool:
        """One pass over all sessions that may grow; False if there was nothing to do."""
        started = time.perf_counter_ns()
        if self._watch.changed():
            self._drop_closed()
            self._follow_opened()
        working = self._working()
        batch = [
            (session, rows)
            for session, chunk in self._with_chunks(working)
            if (rows := self._next_rows(session, chunk, len(working))) is not None
        ]
        self._count_idle(started)
        if not batch:
            self._idle_since = started if self._sessions else None
            return False
        chosen = time.perf_counter_ns()
        logits = self._engine.forward([rows for _, rows in batch])
        forwarded = time.perf_counter_ns()
        for (session, rows), found in zip(batch, logits, strict=True):
            session.grow(rows, found, self._engine)
        self.times.passes += 1
        self.times.choose += chosen - started
        self.times.forward += forwarded - chosen
        self.times.grow += time.perf_counter_ns() - forwarded
        self._tell_passes()
        return True

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing can be to do before a slot is opened or closed, or the target rings."""
        crowd_rests = self._pool.draft_rests
        return all(_rests(session, crowd_rests) for session in self._sessions.values())

    def _tell_passes(self) -> None:
        header = self._pool.header
        header["draft_busy_ns"] = self.times.busy
        header["draft_passes"] = self.times.passes

    def _count_idle(self, now: int) -> None:
        """Account for the time since the last step if that found nothing to do."""
        if self._idle_since is not None:
            self.times.idle += now - self._idle_since
            self._pool.header["draft_waiting_ns"] = self.times.idle
            self._idle_since = None

    def _working(self) -> list[DraftSession]:
        """Sessions that the target wants candidates of, up to date with what it committed."""
        working, crowd_rests = [], self._pool.draft_rests
        for session in self._sessions.values():
            if _rests(session, crowd_rests):
                session.slot.count_time(runs=False)
            else:
                session.follow_commits(self._engine)
                working.append(session)
        return working

    def _with_chunks(self, sessions: list[DraftSession]) -> Iterator[tuple[DraftSession, int]]:
        """How many tokens of its text each session may read in this pass. Long texts that are read
        at once share one chunk: candidates of the others wait no longer for many than for one."""
        reading = [session.reads_prompt(self._engine) for session in sessions]
        chunk = min(self._settings.serving.prefill_chunk, self._engine.most_rows)
        # Never less than is committed meanwhile: whoever reads so little never catches up.
        share = max(min(chunk, LONGEST_COMMIT), chunk // max(1, sum(reading)))
        for session, reads in zip(sessions, reading, strict=True):
            yield session, share if reads else chunk

    def _next_rows(self, session: DraftSession, chunk: int, sharing: int) -> Rows | None:
        rows = session.next_rows(self._engine, chunk, *self._shared(sharing))
        session.slot.count_time(runs=rows is not None)
        return rows

    def _shared(self, sessions: int) -> tuple[SpeculationSettings, Width]:
        """How one of `sessions` sessions grows: they share a pass, so they share its rows."""
        if sessions not in self._shares:
            how = self._settings.speculation
            rows = max(1, DRAFT_ROWS // sessions)
            width = min(how.width, rows)
            share = {"width": width, "lookahead": min(how.lookahead, rows - width)}
            costs_ms = self._engine.row_costs_ms if how.rows == "auto" else {}
            self._shares[sessions] = how.model_copy(update=share), Width(costs_ms, sessions)
        return self._shares[sessions]

    def _drop_closed(self) -> None:
        gone = [
            index
            for index, session in self._sessions.items()
            if not session.slot.is_open(session.generation)
        ]
        for index in gone:
            self._engine.close_session(self._sessions.pop(index).engine_session)

    def _follow_opened(self) -> None:
        for slot, generation, request in self._watch.opened(self._slots, self._sessions):
            if request.decoding is not Decoding.AUTOREGRESSIVE:
                growth = self._settings.speculation.growth
                session = DraftSession.follow(
                    slot, generation, request, self._engine, growth, self._constraint(request)
                )
                self._sessions[slot.index] = session

    def _constraint(self, request: SlotRequest) -> Constraint | None:
        if request.guide is None or self._guides is None:
            return None
        return self._guides.constraint(request.guide)


def _rests(session: DraftSession, crowd_rests: bool) -> bool:
    """Whether the target wants no candidates of the session for now; `crowd_rests`: of none of
    those of CARD."""
    return (crowd_rests and session.request.decoding is Decoding.CARD) or session.rests()
