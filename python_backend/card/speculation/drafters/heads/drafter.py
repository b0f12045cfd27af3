"""A head on the target's hidden states grows a tree, node by node (EAGLE-3, arXiv 2503.01840; its
trees: EAGLE-2, arXiv 2406.16858) or by blocks (P-EAGLE, arXiv 2602.01469; PARD-2,
arXiv 2605.08632).

Of a committed text the target's states are known up to the last token but one. Below, the head
goes on with the states that it computes itself. When the target commits, the true states come: the
text is read again with them, and a new tree replaces what is left of the old one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from card.engines import Logits
from card.speculation.drafters.growth.frontier import UNEXPANDED
from card.speculation.drafters.interface import (
    DraftConfig,
    DraftedSession,
    GrowingTree,
    Model,
    Nodes,
    ReRoot,
)
from card.speculation.drafters.parallel import ParallelDrafter
from card.speculation.drafters.tree import DraftPass, DraftPlan, TreeDrafter

if TYPE_CHECKING:  # torch, which not every process needs
    from card.speculation.drafters.heads.base import StatesEngine

_MOST_LOOKS = 200
"""Looks for new states of a prompt, about a millisecond apart, before the rest is read without."""
_WAITS = Nodes(passes=0, waits=True)


class HeadDrafter(TreeDrafter):
    """Grows trees on a `HeadEngine`."""

    model: ClassVar[Model] = "head"
    _engine: StatesEngine

    def __init__(self, model: StatesEngine, config: DraftConfig) -> None:
        super().__init__(model, config)
        self._waited: dict[int, tuple[int, int]] = {}

    def close(self, session: DraftedSession) -> None:
        self._waited.pop(session.number, None)
        super().close(session)

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """Forget the KV of the tree; what is left of the tree stays until another replaces it."""
        drafted, tree = self._trees[session.number], session.tree
        drafted.re_root(tree, re_root)
        drafted.entry, drafted.pending = [UNEXPANDED] * len(tree), 0
        drafted.frontier.refill(
            (node, rank, depth)
            for node, (rank, depth) in enumerate(zip(drafted.rank, tree.depth, strict=True))
        )
        self._hear(session)
        self._engine.refresh(drafted.engine_session)
        drafted.noise.forget(len(session.tokens))

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        """As `TreeDrafter`; a prompt is read as far as the target's states have come."""
        for session in sessions:
            self._hear(session)
        waiting = [self._room(session) <= 0 for session in sessions]
        for session, waits in zip(sessions, waiting, strict=True):
            if waits:
                self._count_look(session)
        ready = [session for session, waits in zip(sessions, waiting, strict=True) if not waits]
        found = iter(super().propose(ready))
        return [_WAITS if waits else next(found) for waits in waiting]

    def _room(self, session: DraftedSession) -> float:
        """Tokens of the text that the head may read now: before the first commit, those with
        states."""
        number = self._trees[session.number].engine_session
        heard = self._engine.heard(number)
        if len(session.tokens) > len(session.request.prompt):
            return math.inf
        last, looks = self._waited.get(session.number, (heard, 0))
        if last == heard and looks > _MOST_LOOKS:
            return math.inf
        return heard + 1 - self._engine.length(number)

    def _hear(self, session: DraftedSession) -> None:
        """Give the head the states that the target has published of the session's text."""
        if session.states is None:
            return
        number = self._trees[session.number].engine_session
        first, states = session.states(self._engine.heard(number))
        # The target may have committed more since; its tokens are not in the text yet.
        self._engine.hear(number, first, states[: max(0, len(session.tokens) - first)])

    def _count_look(self, session: DraftedSession) -> None:
        """Count how often it was looked for states in vain. A target that waits for the draft
        publishes none, so neither may wait for the other."""
        heard = self._engine.heard(self._trees[session.number].engine_session)
        last, looks = self._waited.get(session.number, (heard, 0))
        self._waited[session.number] = heard, looks + 1 if last == heard else 1

    def _plan(
        self, session: DraftedSession, chunk: int, sharing: int, *, is_chain: bool = False
    ) -> DraftPlan | None:
        chunk = int(min(chunk, self._room(session)))
        return super()._plan(session, chunk, sharing, is_chain=is_chain)

    def _grow(self, session: DraftedSession, planned: DraftPass, logits: Logits) -> Nodes:
        if not (planned.text and planned.expansion and len(session.tree)):
            return super()._grow(session, planned, logits)
        self._trees[session.number].clear()
        fresh = replace(session, tree=GrowingTree(session.tree.capacity))
        return super()._grow(fresh, planned, logits)._replace(replaces=True)


class ParallelHeadDrafter(HeadDrafter, ParallelDrafter):
    """Grows trees by blocks, on a `HeadEngine` with a head that has a mask."""


class BlockDrafter(ParallelHeadDrafter):
    """Grows trees by blocks in which all rows see each other, on a `BlockEngine` (DFlash,
    arXiv 2602.06036; DSpark, arXiv 2607.05147; SpecFormer, arXiv 2511.20340; the CTC drafter,
    arXiv 2412.00061)."""

    ranks_path: ClassVar[bool] = False

    def _depth(self, session: DraftedSession) -> int:
        number = self._trees[session.number].engine_session
        return int(min(super()._depth(session), self._engine.places(number, len(session.tokens))))

    def _plan(
        self, session: DraftedSession, chunk: int, sharing: int, *, is_chain: bool = False
    ) -> DraftPlan | None:
        known = self._engine.length(self._trees[session.number].engine_session)
        missing = session.tokens[known : known + chunk]
        if self._depth(session) < 1:
            return DraftPlan(missing, chunk) if missing else None
        if not (missing or self._engine.goes_on or session.constraint):
            return None
        return super()._plan(session, chunk, sharing, is_chain=is_chain)
