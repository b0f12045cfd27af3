"""The sessions of all open slots: taken over when `card` opens one, ended when it closes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from card.cache import Finish, Pool, SlotRequest, SlotState, SlotWatch, TargetSlot
from card.constraints.compiler import GuideCompiler
from card.constraints.constraint import Constraint
from card.decoding.session import TargetSession
from card.engines import Engine
from card.speculation.ngram import NgramMemory

log = logging.getLogger(__name__)


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
        self._watch = SlotWatch(pool)
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
        self._sessions[slot.index] = TargetSession.adopt(
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
