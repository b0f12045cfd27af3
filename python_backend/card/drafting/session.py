"""One session as the draft sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT, DraftSlot, SlotRequest
from card.drafting.growth import RULES
from card.drafting.tree import GrowingTree
from card.engines import FOLLOWS_PREFIX, Engine, Logits, Rows
from card.pacing import SETTLED, draft_may_run
from card.sampling import rank_candidates
from card.settings import SpeculationSettings

_CHILDREN = 8
"""Children kept per expanded node: the target's token is among the best 8 of a good draft in
99 of 100 cases."""

_SAMPLED_CANDIDATES = 64
"""Ids per row that are perturbed with the target's noise before the best are kept."""

_UNLIKELY = float(np.log(0.01))
"""Children less likely than this, given their parent, are not worth a node; the best one is."""

_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class DraftSession:
    """Committed text, the growing tree below it, and the KV session of both.

    The engine's prefix is the committed text, perhaps without its last tokens; they are forwarded
    (as prefill) before anything can grow below them.
    """

    slot: DraftSlot
    generation: int
    request: SlotRequest
    engine_session: int
    tree: GrowingTree
    tokens: list[int] = field(default_factory=list)
    passes: int = 0
    _pending: int = 0
    _chosen: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)

    @classmethod
    def follow(
        cls, slot: DraftSlot, generation: int, request: SlotRequest, engine: Engine
    ) -> DraftSession:
        """Start at the prompt and what the target may have committed already."""
        slot.reset_counters()
        session = cls(slot, generation, request, engine.open_session(), GrowingTree(slot.capacity))
        committed = slot.output(0, slot.committed(generation)).tolist()
        session.tokens = [*request.prompt.tolist(), *committed]
        session._publish()
        return session

    # --- correct ------------------------------------------------------------------------------

    def follow_commits(self, engine: Engine) -> None:
        """Take over what the target committed: re-root, keep what survives, publish the rest."""
        known = len(self.tokens) - len(self.request.prompt)
        committed = self.slot.committed(self.generation)
        if committed <= known:
            return
        self.re_root(self.slot.output(known, committed).tolist(), engine)

    def re_root(self, committed: list[int], engine: Engine) -> None:
        """The tree below the last committed token survives with its KV entries."""
        outcome = self.tree.re_root(committed)
        engine.keep(self.engine_session, outcome.confirmed, outcome.surviving)
        self._pending = len(outcome.surviving)
        self.tokens.extend(committed)
        self.passes = 0
        self._publish()
        self.slot.count_re_root(restarted=outcome.matched < len(committed))

    def _publish(self) -> None:
        tree = self.tree
        self.slot.replace(self.generation, len(self.tokens), tree.token, tree.parent, tree.score)

    # --- grow ---------------------------------------------------------------------------------

    def next_rows(self, engine: Engine, chunk: int, how: SpeculationSettings) -> Rows | None:
        """What to forward next: text the KV cache lacks, else the best nodes; None: nothing."""
        if not draft_may_run(self.request.decoding, self.request.gamma, self.passes):
            return None
        known = engine.length(self.engine_session)
        missing = len(self.tokens) - known
        if missing:
            tokens = self.tokens[known : known + chunk]
            self._chosen = _NOTHING
            return Rows(self.engine_session, tokens, logits=int(len(tokens) == missing))
        self._chosen = self._choose(engine, how)
        if not self._chosen.size:
            self._settle()
            return None
        above = self.tree.parent[self._chosen]
        parents = np.where(above == ROOT, FOLLOWS_PREFIX, self.tree.entry[above])
        return Rows(self.engine_session, self.tree.token[self._chosen].tolist(), parents.tolist())

    def _choose(self, engine: Engine, how: SpeculationSettings) -> NDArray[np.int64]:
        left = len(self.request.prompt) + self.request.max_tokens - len(self.tokens)
        room = self.tree.capacity - max(self.tree.count, self._pending)
        width = min(how.width, room)
        if width < 1:
            return _NOTHING
        return RULES[how.growth](self.tree, width, min(how.depth, left))

    def _settle(self) -> None:
        if self.passes < SETTLED:
            self.passes = SETTLED
            self.slot.append(_NOTHING, _NOTHING, np.empty(0), SETTLED)

    def grow(self, rows: Rows, logits: Logits, engine: Engine) -> None:
        """Hang the best children of the forwarded rows into the tree and publish them."""
        if rows.parents is None:
            engine.keep(self.engine_session, range(len(rows.tokens)))
            if not rows.logits:
                return
            parents, scores = np.array([ROOT]), np.zeros(1)
            positions = np.array([len(self.tokens)])
        else:
            parents, scores = self._chosen, self.tree.score[self._chosen]
            positions = len(self.tokens) + self.tree.depth[self._chosen] + 1
            self.tree.expand(parents, self._pending)
            self._pending += len(parents)
        token, parent, score = self._best_children(logits, parents, scores, positions)
        self.passes += 1
        added = self.tree.add(token, parent, score)
        tree = self.tree
        self.slot.append(tree.token[added], tree.parent[added], tree.score[added], self.passes)

    def _best_children(
        self,
        logits: Logits,
        parents: NDArray[np.int64],
        scores: NDArray[np.float64],
        positions: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        parameters = self.request.parameters
        ids, values = logits.best(_CHILDREN if parameters.is_greedy else _SAMPLED_CANDIDATES)
        ranked = rank_candidates(ids, values, np.zeros(len(ids), np.float32), positions, parameters)
        if ranked.shape[1] > _CHILDREN:
            best = np.argpartition(-ranked, _CHILDREN - 1, axis=1)[:, :_CHILDREN]
            ids = np.take_along_axis(ids, best, axis=1)
            ranked = np.take_along_axis(ranked, best, axis=1)
        kept = ranked > _UNLIKELY
        kept[np.arange(len(ranked)), ranked.argmax(axis=1)] = True
        row, column = np.nonzero(kept)
        return ids[row, column], parents[row], ranked[row, column] + scores[row]
