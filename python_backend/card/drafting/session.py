"""One session as the draft sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT, DraftSlot, SlotRequest
from card.drafting.children import Child, best_children, ranking_of
from card.drafting.expansion import Expansion, choose_expansion
from card.drafting.tree import GrowingTree
from card.engines import Engine, Logits, Ranking, Rows
from card.lookup import TextLookup
from card.pacing import SETTLED, draft_may_run
from card.sampling import PositionNoise
from card.settings import SpeculationSettings


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
    noise: PositionNoise
    tokens: list[int] = field(default_factory=list)
    passes: int = 0
    _inherited: int = 0
    _lookup: TextLookup = field(default_factory=TextLookup)
    _pending: int = 0
    _expansion: Expansion | None = None
    _children_at: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def follow(
        cls, slot: DraftSlot, generation: int, request: SlotRequest, engine: Engine
    ) -> DraftSession:
        """Start at the prompt and what the target may have committed already."""
        slot.reset_counters()
        noise = PositionNoise(request.parameters.seed, engine.vocabulary)
        tree = GrowingTree(slot.capacity)
        session = cls(slot, generation, request, engine.open_session(), tree, noise)
        committed = slot.output(0, slot.committed(generation)).tolist()
        session._extend([*request.prompt.tolist(), *committed])
        return session

    # --- correct ------------------------------------------------------------------------------

    def follow_commits(self, engine: Engine) -> None:
        """Take over what the target committed since the last look."""
        known = len(self.tokens) - len(self.request.prompt)
        committed = self.slot.committed(self.generation)
        if committed > known:
            self.re_root(self.slot.output(known, committed).tolist(), engine)

    def re_root(self, committed: list[int], engine: Engine) -> None:
        """The tree below the last committed token survives with its KV entries."""
        outcome = self.tree.re_root(committed)
        engine.keep(self.engine_session, outcome.confirmed, outcome.surviving)
        self._pending = len(outcome.surviving)
        self._inherited = self.tree.height
        self._extend(committed)
        self.slot.count_re_root(restarted=outcome.matched < len(committed))

    def _extend(self, committed: list[int]) -> None:
        """Append to the text and publish what is left of the tree below it."""
        self.tokens.extend(committed)
        self._lookup.extend(committed)
        self.noise.forget(len(self.tokens))
        self.passes = 0
        tree = self.tree
        self.slot.replace(self.generation, len(self.tokens), tree.token, tree.parent, tree.score)

    # --- grow ---------------------------------------------------------------------------------

    def next_rows(self, engine: Engine, chunk: int, how: SpeculationSettings) -> Rows | None:
        """What to forward next: text the KV cache lacks, else the best nodes; None: nothing."""
        request = self.request
        if not draft_may_run(request.decoding, request.gamma, self.passes, self._inherited):
            return None
        if len(self.tokens) < self.slot.rests_until(self.generation):
            return None
        known = engine.length(self.engine_session)
        if known < len(self.tokens):
            return self._text_rows(known, chunk, how)
        expansion = choose_expansion(self.tree, self._lookup, how, self._depth(how), self._room())
        if not expansion.rows:
            self._settle()
            return None
        self._expansion = expansion
        tokens, parents = expansion.tree_rows(self.tree, self._pending)
        return Rows(self.engine_session, tokens, parents, ranking=self._ranking(expansion))

    def _text_rows(self, known: int, chunk: int, how: SpeculationSettings) -> Rows:
        """Text the KV cache lacks; behind its end, as far as the chunk has room, guesses."""
        missing = self.tokens[known : known + chunk]
        if known + len(missing) < len(self.tokens):
            self._expansion = None
            return Rows(self.engine_session, missing, logits=0)
        count = min(how.lookahead, self._depth(how) - 1, chunk - len(missing))
        expansion = Expansion.of_root(self._lookup.guesses([], count))
        self._expansion = expansion
        return Rows(
            self.engine_session,
            [*missing, *expansion.guessed],
            logits=1 + len(expansion.guessed),
            ranking=self._ranking(expansion),
        )

    def _ranking(self, expansion: Expansion) -> Ranking:
        parameters = self.request.parameters
        if not parameters.is_greedy:  # else nothing depends on where the children stand
            self._children_at = len(self.tokens) + expansion.depths(self.tree) + 1
        return ranking_of(self._children_at, parameters, self.noise)

    def _depth(self, how: SpeculationSettings) -> int:
        left = len(self.request.prompt) + self.request.max_tokens - len(self.tokens)
        return min(how.depth, left)

    def _room(self) -> int:
        return self.tree.capacity - max(self.tree.count, self._pending)

    def _settle(self) -> None:
        if self.passes < SETTLED:
            self.passes = SETTLED
            nothing = np.empty(0, np.int64)
            self.slot.append(nothing, nothing, np.empty(0), SETTLED)

    def grow(self, rows: Rows, logits: Logits, engine: Engine) -> None:
        """Hang the best children of the forwarded rows into the tree and publish them."""
        expansion = self._expansion
        if expansion is None:
            engine.keep(self.engine_session, range(len(rows.tokens)))
            return
        children = best_children(logits, self._children_at, self.request.parameters)
        first = self.tree.count
        nodes = self._hang(expansion, children)
        if rows.parents is None:
            self._keep_text(rows, expansion, nodes, engine)
        else:
            self.tree.set_entries(nodes, self._pending)
            self._pending += len(nodes)
        self.passes += 1
        tree, added = self.tree, slice(first, self.tree.count)
        self.slot.append(tree.token[added], tree.parent[added], tree.score[added], self.passes)

    def _hang(self, expansion: Expansion, children: list[list[Child]]) -> NDArray[np.int64]:
        """Add the children of every row that is a node; returns the node of each row.

        A guess is a node if it is among the children of the row it was guessed behind.
        """
        tree = self.tree
        chosen = expansion.nodes.tolist()
        nodes = [*chosen, *[GrowingTree.NO_NODE] * len(expansion.guesses)]
        token: list[int] = []
        parent: list[int] = []
        score = [0.0 if node == ROOT else float(tree.score[node]) for node in chosen]
        hung: list[float] = []
        node_of: dict[tuple[int, int], int] = {}
        room = tree.capacity - tree.count
        for row, below in enumerate(children):
            if row >= len(chosen):
                above, guess = expansion.guesses[row - len(chosen)]
                nodes[row] = node_of.get((above, guess), GrowingTree.NO_NODE)
                new = nodes[row] - tree.count
                score.append(hung[new] if new >= 0 else 0.0)
            if nodes[row] == GrowingTree.NO_NODE:
                continue
            for child in below[: room - len(token)]:
                node_of[row, child.token] = tree.count + len(token)
                token.append(child.token)
                parent.append(nodes[row])
                hung.append(score[row] + child.log_probability)
        tree.add(np.array(token, np.int64), np.array(parent, np.int64), np.array(hung))
        return np.array(nodes, np.int64)

    def _keep_text(
        self, rows: Rows, expansion: Expansion, nodes: NDArray[np.int64], engine: Engine
    ) -> None:
        """The text joins the prefix, and of the guesses those that became nodes stay."""
        text = len(rows.tokens) - len(expansion.guesses)
        right = np.flatnonzero(nodes[1:] != GrowingTree.NO_NODE)
        engine.keep(self.engine_session, range(text), (text + right).tolist())
        self.tree.set_entries(nodes[1:][right], 0)
        self._pending = len(right)
