"""The target's loop: query, forward, verify, correct, commit."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from card.cache import Candidates, Finish, Pool, SlotState, SlotWatch
from card.decoding.crowd import Crowd
from card.decoding.experience import Experience
from card.decoding.prefill import Prefill
from card.decoding.rows import RowPlan
from card.decoding.session import TargetSession
from card.decoding.walk import verify
from card.engines import Engine, Logits, Rows
from card.sampling import InvalidLogitsError
from card.settings import Settings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TargetTimes:
    """Nanoseconds spent since the loop began, by phase; `waiting` with sessions but no work."""

    steps: int = 0
    query: int = 0
    forward: int = 0
    walk: int = 0
    waiting: int = 0


class TargetLoop:
    """Decodes every open slot of the pool; call `step` again and again from one thread."""

    def __init__(self, engine: Engine, pool: Pool, settings: Settings) -> None:
        self.times = TargetTimes()
        self._engine = engine
        self._pool = pool
        self._settings = settings
        self._adapts = settings.speculation.rows == "auto"
        self._may_lean = self._adapts and settings.speculation.lookahead > 0
        self._slots = [pool.target_slot(index) for index in range(pool.geometry.slots)]
        self._sessions: dict[int, TargetSession] = {}
        self._watch = SlotWatch(pool)
        self._plan = RowPlan(engine.row_costs_ms, engine.alone_share)
        chunk = min(settings.serving.prefill_chunk, engine.most_rows)
        self._prefill = Prefill(chunk, engine.row_costs_ms)
        self._experience = Experience()
        self._crowd = Crowd(self._plan.gain)
        self._asks_crowd = False
        self._crowd_rests = False
        self._ended = 0
        self._idle_since: int | None = None
        pool.let_draft_rest(rests=False)

    def step(self) -> bool:
        """One pass over all sessions that may run; False if there was nothing to do."""
        if self._watch.changed():
            self._release_closed()
            self._adopt_opened()
        started = time.perf_counter_ns()
        batch = self._next_rows()
        if not batch:
            if self._sessions and self._idle_since is None:
                self._idle_since = started
            self._ended = 0
            return False
        if self._idle_since is not None:
            self.times.waiting += started - self._idle_since
            self._idle_since = None
        queried = time.perf_counter_ns()
        logits = self._engine.forward([rows for _, rows in batch])
        forwarded = time.perf_counter_ns()
        tokens = sum(
            self._verify(session, rows, found, len(batch))
            for (session, rows), found in zip(batch, logits, strict=True)
        )
        ended = time.perf_counter_ns()
        if self._asks_crowd and self._ended and all(rows.logits is None for _, rows in batch):
            served = sum(session.drafted > 0 for session, _ in batch)
            self._crowd.observe(len(batch), tokens, (ended - self._ended) / 1e9, served)
        self._ended = ended
        self.times.steps += 1
        self.times.query += queried - started
        self.times.forward += forwarded - queried
        self.times.walk += ended - forwarded
        return True

    @property
    def is_at_rest(self) -> bool:
        """Never while a slot is in use: nobody rings for what a pacing waits for."""
        return False

    def _adopt_opened(self) -> None:
        for slot, generation, request in self._watch.opened(self._slots, self._sessions):
            if slot.finish(generation) is Finish.RUNNING:
                session = TargetSession.adopt(slot, generation, request, self._engine)
                self._sessions[slot.index] = session
                self._foresee(session)

    def _foresee(self, session: TargetSession) -> None:
        if session.pacing.adapts and self._adapts and not self._crowd_rests:
            session.foresee(self._experience, self._plan.promise())

    def _release_closed(self) -> None:
        # Read first, the generation before the state: only a session that is dropped below is
        # released, and never one that is opened anew meanwhile.
        generations = [slot.generation for slot in self._slots]
        closed = [slot.state is SlotState.CLOSED for slot in self._slots]
        for index, session in list(self._sessions.items()):
            if not session.slot.is_open(session.generation):
                self._engine.close_session(self._sessions.pop(index).engine_session)
                if session.pacing.adapts:
                    seen = session.judgement.gain.seen
                    self._experience.learn(session.request.parameters, seen)
        for slot, generation, is_closed in zip(self._slots, generations, closed, strict=True):
            if is_closed:
                slot.release(generation)

    def _next_rows(self) -> list[tuple[TargetSession, Rows]]:
        running = [s for s in self._sessions.values() if not self._finished(s)]
        if not running:
            self._crowd.disperse()
            self._let_draft_rest(rests=False)
            return []
        timeout_s = self._settings.serving.engine_timeout_s
        draft_lives = self._pool.is_alive("draft", timeout_s)
        ready = [
            session
            for session in running
            if session.may_run(
                self._engine,
                self._settings.speculation,
                draft_lives=draft_lives,
                longest_wait_s=timeout_s,
            )
        ]
        self._let_draft_rest(rests=self._rests(running, draft_lives=draft_lives))
        if not draft_lives or self._crowd_rests:
            for session in running:
                session.judgement.pardon()
        self._engine.alone = not draft_lives or not any(
            session.shares_cores(crowd_rests=self._crowd_rests) for session in running
        )
        return self._rows_of(ready)

    def _rests(self, running: list[TargetSession], *, draft_lives: bool) -> bool:
        """Whether so many sessions are better off without the draft."""
        if not draft_lives:  # what was being measured says nothing of one that works
            self._crowd, self._experience = Crowd(self._plan.gain), Experience()
        self._asks_crowd = (
            self._adapts and draft_lives and any(session.pacing.adapts for session in running)
        )
        return self._asks_crowd and self._crowd.rests(len(running))

    def _let_draft_rest(self, *, rests: bool) -> None:
        """Tell the draft, if that is news."""
        if rests is not self._crowd_rests:
            self._crowd_rests = rests
            self._pool.let_draft_rest(rests=rests)

    def _finished(self, session: TargetSession) -> bool:
        return session.slot.finish(session.generation) is not Finish.RUNNING

    def _rows_of(self, sessions: list[TargetSession]) -> list[tuple[TargetSession, Rows]]:
        """What each session puts into the pass that they share: prompt, or what it verifies."""
        streaming = [s for s in sessions if not s.reads_prompt(self._engine)]
        prompts = len(sessions) - len(streaming)
        most_rows = self._prefill.rows_of_streams(prompts) if prompts else None
        found = self._candidates_of(streaming, most_rows)
        verified = [
            session.rows(candidates) for session, candidates in zip(streaming, found, strict=True)
        ]
        if not prompts:
            return list(zip(streaming, verified, strict=True))
        chunk = self._prefill.tokens(prompts, sum(len(rows.tokens) for rows in verified))
        of_stream = iter(verified)
        return [
            (session, session.prefill(self._engine, chunk) or next(of_stream))
            for session in sessions
        ]

    def _candidates_of(
        self, sessions: list[TargetSession], most_rows: int | None
    ) -> list[Candidates]:
        """What each of those that stream verifies in the pass that they share, in `most_rows` rows
        in all where the plan decides how many, if each has one."""
        found = [self._query(session, len(sessions), most_rows) for session in sessions]
        if self._adapts and self._settings.speculation.query == "chain":
            chances = [candidates.chances for candidates in found]
            counts = self._plan.worthwhile(chances, most_rows)
            found = [all_of.first(count) for all_of, count in zip(found, counts, strict=True)]
        return found

    def _query(self, session: TargetSession, sharing: int, most_rows: int | None) -> Candidates:
        """All candidates of a session that may be worth a row of a pass that `sharing` share."""
        how, plan, vocabulary = self._settings.speculation, self._plan, self._engine.vocabulary
        if how.rows != "auto":
            return session.query(how.rows, vocabulary, how)
        if not self._crowd_rests:
            session.weigh_drafting()
        drafts = session.drafts(crowd_rests=self._crowd_rests)
        if session.wakes_draft(drafts=drafts):
            self._pool.slot_bell.ring()
        if how.query == "subtree":
            rows = plan.rows(session.judgement.acceptance.rate, sharing)
            if most_rows is not None:
                rows = min(rows, max(1, most_rows // sharing))
        else:
            rows = plan.most_rows(sharing)
        return session.query(rows, vocabulary, how, drafts=drafts)

    def _verify(self, session: TargetSession, rows: Rows, logits: Logits, sharing: int) -> int:
        """Walk, keep the KV of the committed path, commit; returns how many tokens."""
        if rows.logits is not None:
            self._engine.keep(session.engine_session, range(len(rows.tokens)))
            if not rows.logits:
                return 0
        try:
            verdict = verify(logits, 0, session.candidates, session.history, session.request)
        except InvalidLogitsError as error:
            log.error("session of slot %d failed: %s", session.slot.index, error)
            session.slot.fail()
            return 0
        if rows.logits is None:
            self._engine.keep(session.engine_session, verdict.rows)
        session.commit(verdict)
        session.judge_draft(verdict, self._plan, sharing)
        if self._may_lean and session.pacing.adapts:
            session.lean_on_text(verdict, self._plan, sharing)
        return len(verdict.tokens)
