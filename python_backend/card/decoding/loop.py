"""The target's loop: plan, propose, forward, verify, commit, observe."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.cache import Finish, Pool
from card.constraints import Budget, GuideError
from card.constraints.compiler import GuideCompiler
from card.decoding.from_settings import acceptance_rules, controller, ngram_memory
from card.decoding.open_sessions import OpenSessions, Prefill
from card.decoding.session import NO_QUERY, Query, TargetSession
from card.engines import Engine, Logits, SequenceTokens
from card.sampling import InvalidLogitsError
from card.settings import Settings
from card.speculation.acceptance import Outcome, VerifyResult
from card.speculation.control import Share, StepPlan
from card.speculation.sources import make_sources
from card.speculation.sources.ngram import NgramMemory

log = logging.getLogger(__name__)

_GUIDE_FINISH = {
    None: Finish.GUIDE_FAILED,
    Budget.ITEMS: Finish.GUIDE_ITEMS,
    Budget.FUEL: Finish.GUIDE_FUEL,
    Budget.STATES: Finish.GUIDE_STATES,
}


@dataclass(slots=True)
class TargetTimes:
    """Nanoseconds spent since the loop began, by phase; `waiting` with sessions but no work."""

    steps: int = 0
    query: int = 0
    forward: int = 0
    verify: int = 0
    waiting: int = 0


class Turn(NamedTuple):
    """What one session puts into a pass.

    query  what is verified; None: the session reads its prompt
    """

    session: TargetSession
    rows: SequenceTokens
    query: Query | None


class RowsBehind(NamedTuple):
    """The logits of a session's rows without the first ones."""

    logits: Logits
    first: int

    def row(self, index: int) -> NDArray[np.float32]:
        """[vocabulary] float32."""
        return self.logits.row(self.first + index)


class TargetLoop:
    """Decodes every open slot of the pool; call `step` again and again from one thread."""

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        settings: Settings,
        guides: GuideCompiler | None = None,
        ngrams: NgramMemory | None = None,
    ) -> None:
        """`guides` compiles those of requests; None: texts of this model cannot be guided. `ngrams`
        is what outlives this loop; None: nothing does."""
        self.times = TargetTimes()
        self._engine = engine
        self._pool = pool
        ngrams = ngrams or ngram_memory(settings, engine.vocabulary)
        self._sessions = OpenSessions(pool, engine, guides, ngrams)
        self._timeout_s = settings.serving.engine_timeout_s
        speculation = settings.speculation
        self._sources = make_sources(speculation.query, speculation.paths, settings.proposals)
        self._learning = [source for source in self._sources.values() if source.learns]
        self._rules = acceptance_rules(settings)
        self._control = controller(settings, engine)
        chunk = min(settings.serving.prefill_chunk, engine.most_rows)
        self._prefill = Prefill(chunk, engine.row_costs_ms)
        self._draft_stopped = False
        self._idle_since: int | None = None
        pool.stop_draft(stopped=False)

    def step(self) -> bool:
        """One pass over all sessions that may run; False if there was nothing to do."""
        for session in self._sessions.follow_slots():
            self._control.forget(session)
        started = time.perf_counter_ns()
        draft_lives = self._pool.is_alive("draft", self._timeout_s)
        streaming, reading = self._ready(draft_lives=draft_lives)
        waited = self._count_waiting(started, works=bool(streaming or reading))
        if not (streaming or reading):
            return False
        in_turns = any(session.awaited for session in streaming)
        plan = self._plan(streaming, reading, draft_lives=draft_lives)
        beside = draft_lives and self._draft_computes(streaming)
        turns = self._propose(streaming, reading, plan, beside=beside)
        queried = time.perf_counter_ns()
        logits = self._engine.forward([turn.rows for turn in turns], alone=not beside)
        forwarded = time.perf_counter_ns()
        results = [self._verify(*pair) for pair in zip(turns, logits, strict=True)]
        for turn, result, rows in zip(turns, results, logits, strict=True):
            self._commit(turn, result, rows)
            self._learn(turn, result, rows)
        ended = time.perf_counter_ns()
        if any(session.waits for session in streaming):
            self._pool.slot_bell.ring()
        seconds = None if reading else (ended - started) / 1e9
        waited_s = waited / 1e9 if in_turns else None
        self._observe(plan, turns, results, seconds, waited_s, beside=beside)
        self.times.steps += 1
        self._pool.count_pass()
        self.times.query += queried - started
        self.times.forward += forwarded - queried
        self.times.verify += ended - forwarded
        return True

    @property
    def is_idle(self) -> bool:
        """Never while a slot is in use: no bell rings for what a pacing waits for."""
        return False

    def _ready(self, *, draft_lives: bool) -> tuple[list[TargetSession], list[TargetSession]]:
        """Sessions that take part in the pass: those that stream, and those that read prompts."""
        ready: tuple[list[TargetSession], list[TargetSession]] = [], []
        for session in self._sessions:
            if session.slot.finish(session.session_id) is Finish.RUNNING:
                reads = session.reads_prompt(self._engine)
                if session.take_turn(
                    reads, draft_lives=draft_lives, longest_wait_s=self._timeout_s
                ):
                    ready[reads].append(session)
        return ready

    # --- plan ---------------------------------------------------------------------------------

    def _plan(
        self,
        streaming: Sequence[TargetSession],
        reading: Sequence[TargetSession],
        *,
        draft_lives: bool,
    ) -> StepPlan:
        """What the pass does for each of those that stream, beside those that read their prompts;
        the draft hears of it."""
        if not any(session.queries for session in (*streaming, *reading)):
            self._tell_stopped()
            return StepPlan([Share(drafts=False, num_rows=1, ngram_tokens=0) for _ in streaming])
        most_rows = self._prefill.rows_of_streams(len(reading)) if reading else None
        plan = self._control.plan(
            streaming,
            draft_lives=draft_lives,
            draft_pass_ms=self._pool.draft_pass_ms,
            reading=reading,
            most_rows=most_rows,
        )
        begins = []
        for session, share in zip(streaming, plan.shares, strict=True):
            begins.append(session.tell_draft(works=share.drafts or not draft_lives))
            session.await_draft(share)
        for session in reading:
            begins.append(session.tell_draft(works=plan.prepares or not session.adapts))
        begins.append(self._tell_stopped())
        if any(begins):  # last, because a draft that finds nothing to do sleeps on
            self._pool.slot_bell.ring()
        return plan

    def _draft_computes(self, streaming: Sequence[TargetSession]) -> bool:
        """Whether the draft works for any session during a pass of these. While a prompt is read it
        does not yet, and for a text that has ended but that `card` has not closed, no longer."""
        return any(
            session.drafts
            and not session.stops_draft
            and session.history.generated
            and session.slot.finish(session.session_id) is Finish.RUNNING
            for session in self._sessions
            if not (session.is_remote or (session.is_in_turns and session in streaming))
        )

    def _tell_stopped(self) -> bool:
        """Tell the draft, on a change, whether it works for no session with an adaptive pacing;
        returns whether it begins to work again."""
        adapting = [session for session in self._sessions if session.adapts]
        stopped = bool(adapting) and all(session.stops_draft for session in adapting)
        if stopped is self._draft_stopped:
            return False
        self._draft_stopped = stopped
        self._pool.stop_draft(stopped=stopped)
        return not stopped

    # --- propose ------------------------------------------------------------------------------

    def _propose(
        self,
        streaming: Sequence[TargetSession],
        reading: Sequence[TargetSession],
        plan: StepPlan,
        *,
        beside: bool,
    ) -> list[Turn]:
        """What each session puts into the pass that they share: what it verifies, or prompt."""
        turns = []
        for session, query in zip(
            streaming, self._queries(streaming, plan, beside=beside), strict=True
        ):
            session.slot.verify(len(query.candidates))
            turns.append(Turn(session, session.rows(query.candidates), query))
        if reading:
            chunk = self._prefill.tokens(len(reading), sum(len(turn.rows.tokens) for turn in turns))
            turns += [Turn(one, one.prefill(self._engine, chunk), None) for one in reading]
        return turns

    def _queries(
        self, streaming: Sequence[TargetSession], plan: StepPlan, *, beside: bool
    ) -> list[Query]:
        """The candidates of each session that are worth their rows."""
        found = [
            session.query(self._sources, share)
            for session, share in zip(streaming, plan.shares, strict=True)
        ]
        if not found:
            return []
        candidates, drafted = [one.candidates for one in found], [one.drafted for one in found]
        counts = self._control.trim(plan, streaming, candidates, drafted, beside=beside)
        return [query.first(count) for query, count in zip(found, counts, strict=True)]

    # --- verify -------------------------------------------------------------------------------

    def _verify(self, turn: Turn, logits: Logits) -> VerifyResult | None:
        """What is committed to one session; None: nothing, it reads on, or its logits are broken
        and the session ends."""
        session, query, rows = turn.session, turn.query or NO_QUERY, turn.rows
        behind = 0
        if turn.query is None:
            known, behind = self._engine.length(session.engine_session), rows.wanted - 1
            if session.request.prompt_log_probabilities:
                session.score_prompt(known, logits, rows.wanted)
            if known + len(rows.tokens) < len(session.history):
                return None
        try:
            return self._rules[session.request.acceptance].verify(
                RowsBehind(logits, behind),
                query.candidates,
                session.history,
                session.request,
                session.constraint,
            )
        except InvalidLogitsError as error:
            log.error("session of slot %d failed: %s", session.slot.index, error)
            session.slot.fail(Finish.FAILED)
        except GuideError as error:
            log.error("the guide of slot %d failed: %s", session.slot.index, error)
            session.slot.fail(_GUIDE_FINISH[error.budget])
        return None

    # --- commit -------------------------------------------------------------------------------

    def _commit(self, turn: Turn, result: VerifyResult | None, rows: Logits) -> None:
        """Keep the KV rows of the committed path, and publish their states and its tokens."""
        session, query = turn.session, turn.query
        confirmed: Sequence[int] = range(len(turn.rows.tokens))
        if query is not None:
            if result is None:
                return
            confirmed = result.rows
            session.slot.verify(0)
        if rows.states is not None:
            session.publish_states(self._engine, confirmed, rows.states)
        self._engine.commit_kv(session.engine_session, confirmed)
        if result is not None:
            session.commit(result, query or NO_QUERY)
            if query is None:
                session.remember(self._engine)

    def _learn(self, turn: Turn, result: VerifyResult | None, rows: Logits) -> None:
        """Let sources hear what became of candidates."""
        if turn.query is None or result is None:
            return
        for source in self._learning:
            source.learn(turn.session, turn.query.candidates, result, rows)

    # --- observe ------------------------------------------------------------------------------

    def _observe(
        self,
        plan: StepPlan,
        turns: Sequence[Turn],
        results: Sequence[VerifyResult | None],
        seconds: float | None,
        waited_s: float | None,
        *,
        beside: bool,
    ) -> None:
        """Let the controller hear what the pass gave those that stream, and how long it had waited
        for the draft; None: it did not."""
        pairs = [
            (turn.session, turn.query.outcome(result))
            for turn, result in zip(turns, results, strict=True)
            if turn.query is not None
        ]
        if any(session.queries for session, _ in pairs):
            sessions, outcomes = zip(*pairs, strict=True)
            self._control.observe(plan, sessions, outcomes, seconds, waited_s or 0.0, beside=beside)
            if seconds is not None and all(session.adapts for session in sessions):
                tokens = len(outcomes) + sum(outcome.accepted for outcome in outcomes)
                way = _way_of(outcomes, in_turns=waited_s is not None, beside=beside)
                self._pool.count_way(way, tokens, seconds + (waited_s or 0.0))

    def _count_waiting(self, now: int, *, works: bool) -> int:
        """Nanoseconds for which sessions had nothing to do, if they have now."""
        waited = 0
        if self._idle_since is not None and works:
            waited = now - self._idle_since
            self.times.waiting += waited
            self._idle_since = None
        elif self._sessions and not works and self._idle_since is None:
            self._idle_since = now
        return waited


def _way_of(outcomes: Sequence[Outcome], *, in_turns: bool, beside: bool) -> str:
    """Of `WAYS`, the one that a pass of `auto` went."""
    if in_turns:
        return "turns"
    if beside:
        return "beside"
    return "ngrams" if any(outcome.verified for outcome in outcomes) else "alone"
