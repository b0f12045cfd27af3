"""The target's loop over vLLM: query, a step of vLLM, commit.

A step verifies the candidates of all texts; vLLM decides which prompts it reads, schedules and
samples. Plan, query and what the controller hears are those of the loop over our own engines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from vllm.v1.engine import FinishReason

from card.cache import Finish, Pool
from card.constraints import Guide
from card.constraints.compiler import GuideCompiler
from card.decoding.guest import commit
from card.decoding.loop import TargetLoop, Turn
from card.decoding.session import NO_QUERY, Query, TargetSession
from card.engines import Engine, SequenceTokens
from card.sampling import Likeliest
from card.settings import Settings
from card.speculation.acceptance import VerifyResult
from card.speculation.sources.ngram import NgramMemory
from card.vllm.engine import VllmEngine

log = logging.getLogger(__name__)


class _GuidesOfVllm:
    """In place of a `GuideCompiler`: vLLM compiles guides, and masks its logits, by itself."""

    def constraint(self, guide: Guide) -> None:
        return None


_FINISH = {FinishReason.STOP: Finish.END_ID, FinishReason.LENGTH: Finish.LENGTH}


class VllmLoop(TargetLoop):
    """Decodes every open slot of the pool; call `step` again and again from one thread."""

    def __init__(
        self, engine: VllmEngine, pool: Pool, settings: Settings, ngrams: NgramMemory
    ) -> None:
        # The loop of our engines forwards rows; this one does not call it.
        guides = cast(GuideCompiler, _GuidesOfVllm())
        super().__init__(cast(Engine, engine), pool, settings, guides, ngrams)
        self._vllm = engine
        self._begun: set[int] = set()
        self._repeats: dict[int, int] = {}

    def step(self) -> bool:
        """One step of vLLM over all sessions; False if there was nothing to do."""
        for session in self._sessions.follow_slots():
            self._control.forget(session)
            self._begun.discard(session.number)
            self._repeats.pop(session.number, None)
        running = list(self._running())
        if not running:
            return False
        started = time.perf_counter_ns()
        streaming = [session for session in running if session.number in self._begun]
        reading = [session for session in running if session.number not in self._begun]
        draft_lives = self._pool.is_alive("draft", self._timeout_s)
        plan = self._plan(streaming, reading, draft_lives=draft_lives)
        beside = draft_lives and self._draft_computes(streaming)
        queries = self._queries(streaming, plan, beside=beside)
        turns = self._offered(streaming, queries)
        queried = time.perf_counter_ns()
        outputs = self._vllm.step()
        forwarded = time.perf_counter_ns()
        results = [self._take(turn, outputs) for turn in turns]
        for session in reading:
            self._take(Turn(session, SequenceTokens(session.engine_session, ()), None), outputs)
        ended = time.perf_counter_ns()
        seconds = None if reading else (ended - started) / 1e9
        self._observe(plan, turns, results, seconds, 0.0, beside=beside)
        self._pool.count_pass()
        self.times.steps += 1
        self.times.query += queried - started
        self.times.forward += forwarded - queried
        self.times.verify += ended - forwarded
        return True

    def abandon(self) -> None:
        """The pool is another: end every request."""
        for session in self._sessions:
            self._vllm.close_session(session.engine_session)

    # --- requests -----------------------------------------------------------------------------

    def _running(self) -> Iterator[TargetSession]:
        """Sessions with a request in vLLM; those that `card` opened get theirs."""
        for session in self._sessions:
            if session.slot.finish(session.session_id) is not Finish.RUNNING:
                continue
            if not self._vllm.has_request(session.engine_session):
                try:
                    self._request(session)
                except ValueError as error:
                    log.error("session of slot %d failed: %s", session.slot.index, error)
                    guided = session.request.guide is not None
                    session.slot.fail(Finish.GUIDE_FAILED if guided else Finish.FAILED)
                    continue
            session.slot.count_time(runs=True)
            yield session

    def _request(self, session: TargetSession) -> None:
        """Ask for the session's text, behind what a lost process committed.

        Where the noise or a parameter depends on the output so far, vLLM writes the text again from
        its beginning, and what is committed is left out. Raises `ValueError` if it would write
        another text.
        """
        session.takes_turns = False  # a step of vLLM waits for no draft
        written, parameters = session.history.generated, session.parameters
        # With candidates, the noise of a seed would depend on them.
        with_seed = not session.queries
        begins_anew = written > 0 and (
            (with_seed and not parameters.is_greedy)
            or session.request.guide is not None
            or parameters.presence_penalty != 0.0
            or parameters.frequency_penalty != 0.0
            or any(len(word) > 1 for word in parameters.bad_words)
        )
        if begins_anew and not (with_seed or parameters.is_greedy):
            raise ValueError("vLLM was started again, and cannot go on with this sampled text")
        prompt, first = session.history.tokens, written
        if begins_anew:
            prompt, first = session.request.prompt.tolist(), 0
            self._repeats[session.number] = written
        self._vllm.request(
            session.engine_session, session.request, prompt, first, with_seed=with_seed
        )

    # --- a step -------------------------------------------------------------------------------

    def _offered(self, streaming: list[TargetSession], queries: list[Query]) -> list[Turn]:
        """What vLLM verifies of each session's candidates."""
        taken = self._vllm.offer(
            {
                session.engine_session: query.candidates.tokens
                for session, query in zip(streaming, queries, strict=True)
            }
        )
        turns = []
        for session, query in zip(streaming, queries, strict=True):
            kept = query.first(taken[session.engine_session])
            session.slot.verify(len(kept.candidates))
            turns.append(Turn(session, SequenceTokens(session.engine_session, ()), kept))
        return turns

    def _take(self, turn: Turn, outputs: dict[int, Any]) -> VerifyResult | None:
        """Commit what a step gave a session; None if it gave nothing."""
        session, query = turn.session, turn.query or NO_QUERY
        output = outputs.get(session.engine_session)
        if output is None:
            return None
        session.slot.verify(0)
        if output.new_prompt_logprobs_tensors is not None:
            _score_prompt(session, output.new_prompt_logprobs_tensors)
        if output.prefill_stats is not None:
            session.slot.count_reuse(output.prefill_stats.num_cached_tokens)
        if session.number in self._repeats:
            return self._repeat(session, output)
        if output.new_token_ids:
            self._begun.add(session.number)
        return self._commit_output(session, query, output)

    def _repeat(self, session: TargetSession, output: Any) -> VerifyResult | None:
        """Compare tokens with those that a lost process committed; commit what lies behind."""
        left = self._repeats[session.number]
        tokens = output.new_token_ids
        known = session.history.tokens[len(session.history) - left :]
        if tokens[:left] != known[: len(tokens)]:
            log.error("session of slot %d failed: its text changed", session.slot.index)
            self._vllm.close_session(session.engine_session)
            session.slot.fail()
            return None
        if len(tokens) < left:
            self._repeats[session.number] = left - len(tokens)
            return None
        del self._repeats[session.number]
        self._begun.add(session.number)
        return self._commit_output(session, NO_QUERY, output, left)

    def _commit_output(
        self, session: TargetSession, query: Query, output: Any, known: int = 0
    ) -> VerifyResult | None:
        """Commit the tokens of a step behind the first `known`."""
        tokens = output.new_token_ids[known:]
        finish = Finish.RUNNING
        if output.finish_reason is not None:
            finish = _FINISH.get(output.finish_reason, Finish.FAILED)
        if finish is Finish.FAILED:
            log.error("session of slot %d ended: %s", session.slot.index, output.finish_reason)
            session.slot.fail()
            return None
        if not tokens:
            return None
        logged: list[float] = []
        likeliest: list[Likeliest] = []
        if session.request.log_probabilities and output.new_logprobs is not None:
            ids, values = output.new_logprobs[:2]
            logged = values[known:, 0].tolist()
            if count := session.request.likeliest:
                likeliest = [
                    _likeliest(row_ids, row, count)
                    for row_ids, row in zip(ids[known:], values[known:], strict=True)
                ]
        return commit(session, tokens, query, finish, logged, likeliest)


def _likeliest(ids: Any, log_probabilities: Any, count: int) -> Likeliest:
    """Of one position of vLLM's: the first entry is the token, the likeliest ones follow."""
    return Likeliest(
        np.asarray(ids[1 : 1 + count], np.int64),
        np.asarray(log_probabilities[1 : 1 + count], np.float32),
    )


def _score_prompt(session: TargetSession, scored: Any) -> None:
    ids, values = scored.logprob_token_ids.numpy(), scored.logprobs.numpy()
    count = session.request.likeliest
    for place, (row_ids, row) in enumerate(zip(ids, values, strict=True), 1):
        found = _likeliest(row_ids, row, count) if count else None
        session.slot.score_prompt(place, float(row[0]), found)
