"""The sessions of all open slots: `card` opens and closes them; and how much of their prompts they
read in a pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from card.cache import Finish, Pool, SlotRequest, SlotState, SlotWatch, TargetSlot
from card.constraints.compiler import GuideCompiler
from card.constraints.constraint import Constraint
from card.decoding.session import TargetSession
from card.engines import Engine
from card.engines.interface import CostCurve
from card.sampling import History
from card.speculation.sources.ngram import NgramMemory, NgramProposer

log = logging.getLogger(__name__)

_NEARLY_AS_FAST = 0.8
"""A pass of half a chunk's rows is preferred if it reads at least this share of the prompt tokens
per second of a whole chunk, because streams wait half as long."""


class OpenSessions:
    """Iterates over the sessions, in the order in which the target took them over.

    guides  compiles guides of requests; None: texts of this model cannot be guided
    ngrams  the n-grams that texts share
    """

    def __init__(
        self, pool: Pool, engine: Engine, guides: GuideCompiler | None, ngrams: NgramMemory
    ) -> None:
        self._engine = engine
        self._guides = guides
        self._ngrams = ngrams
        self._slots = [pool.target_slot(index) for index in range(pool.geometry.slots)]
        self._watch = SlotWatch(pool.slots)
        self._sessions: dict[int, TargetSession] = {}

    def __iter__(self) -> Iterator[TargetSession]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def follow_slots(self) -> list[TargetSession]:
        """Take over opened slots and end closed ones; returns the sessions that ended."""
        if not self._watch.look():
            return []
        ended = self._release_closed()
        for slot, session_id, request in self._watch.opened(self._slots, self._sessions):
            if slot.finish(session_id) is Finish.RUNNING:
                self._adopt(slot, session_id, request)
        return ended

    def _adopt(self, slot: TargetSlot, session_id: int, request: SlotRequest) -> None:
        constraint: Constraint | None = None
        if request.guide is not None:
            if self._guides is None:
                log.error("slot %d has a guide, and this model's texts cannot have one", slot.index)
                slot.adopt(session_id)
                slot.fail(Finish.GUIDE_FAILED)
                return
            constraint = self._guides.constraint(request.guide)
        proposer = self._ngrams.proposer(request.salt)
        self._sessions[slot.index] = taken_over(
            slot, session_id, request, self._engine, constraint, proposer
        )

    def _release_closed(self) -> list[TargetSession]:
        # Ids are read first, then states: so a slot that is opened again meanwhile is never
        # released.
        session_ids = [slot.session_id for slot in self._slots]
        closed = [slot.state is SlotState.CLOSED for slot in self._slots]
        ended = [
            session
            for session in self._sessions.values()
            if not session.slot.is_open(session.session_id)
        ]
        for session in ended:
            self._sessions.pop(session.slot.index).close(self._engine)
        for slot, session_id, is_closed in zip(self._slots, session_ids, closed, strict=True):
            if is_closed:
                slot.release(session_id)
        return ended


def taken_over(
    slot: TargetSlot,
    session_id: int,
    request: SlotRequest,
    engine: Engine,
    constraint: Constraint | None = None,
    proposer: NgramProposer | None = None,
) -> TargetSession:
    """The session of an open slot, which continues behind its committed tokens.

    proposer  an n-gram proposer that has read nothing yet; None: a new one without other texts
    """
    committed = slot.output(0, slot.adopt(session_id)).tolist()
    history = History(request.prompt, len(request.prompt) + request.max_tokens)
    for token in committed:
        history.append(token)
    if constraint is not None:
        constraint.advance(committed)
    # Rows must not depend on the passes that read the rows before them, and kept KV has no logits
    # of the prompt. The last token is always read, because its logits are needed.
    if request.reuses_kv and engine.row_invariant and not request.prompt_log_probabilities:
        session = engine.open_session(history.tokens[:-1], request.salt)
    else:
        session = engine.open_session()
    slot.count_reuse(engine.length(session))
    return TargetSession(
        slot,
        session_id,
        request,
        history,
        session,
        engine.vocabulary,
        constraint,
        proposer or NgramProposer(),
    )


class Prefill:
    """Shares a chunk of rows among prompts and streams, so that a stream never waits for more than
    one pass of a chunk's rows.

    chunk     most prompt tokens of a pass, and most rows of a pass with streams
    costs_ms  milliseconds of a pass by its rows; empty if not measured
    """

    def __init__(self, chunk: int, costs_ms: Mapping[int, float]) -> None:
        self._chunk = chunk
        self._half = max(1, chunk // 2)
        self._curve = CostCurve(costs_ms) if costs_ms else None

    def rows_of_streams(self, prompts: int) -> int:
        """Rows that all streams together may verify while `prompts` sessions read prompts. The
        prompts always get the other half of the chunk, or a token for each."""
        return max(1, self._chunk - max(self._half, prompts))

    def tokens(self, prompts: int, streaming: int) -> int:
        """Prompt tokens that each of `prompts` sessions may read in a pass with `streaming` rows of
        streams.

        The streams' rows count as part of the chunk. If every row takes time (a processor), a pass
        of half a chunk reads prompts nearly as fast, and is preferred. If rows are nearly free (a
        GPU), it is slower.
        """
        if not streaming:
            return max(1, self._chunk // prompts)
        most = max(1, max(self._half, self._chunk - streaming) // prompts)
        of_half = (self._half - streaming) // prompts
        if of_half > 0 and self._curve is not None:
            half_ms, most_ms = (
                self._curve.pass_ms(streaming + prompts * each) for each in (of_half, most)
            )
            if of_half / half_ms >= _NEARLY_AS_FAST * most / most_ms:
                return of_half
        return most
