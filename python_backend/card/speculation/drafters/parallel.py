"""A draft model makes a block of tokens in one pass (PARD, arXiv 2504.18583; ParallelSpec,
arXiv 2410.05589).

The pass reads the new tokens, then masks. The row of the last token predicts the next token, the
row of each mask one further token. The KV entries of masks are dropped. So a pass ranks the tokens
of several places, and the places form a lattice. The tree takes the likeliest paths through it.

The next block stands behind a path of the tree. Its pass also reads the path's tokens, so it ranks
the children of each of them anew, now with the tokens before them known. A pass that reads
committed text replaces the rest of the tree, because the new block reaches further and knows more.

A text under a guide is drafted step by step, for the ids that a guide allows depend on the tokens
before. Every row is ranked under the noise of its own position, as in `tree`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from card.cache import ROOT
from card.engines import FOLLOWS_PREFIX, Engine, Logits, SequenceTokens
from card.engines.interface import CostCurve
from card.engines.options import DRAFT_ROWS
from card.speculation.drafters.draft_pass import Chosen, DraftedTree, Expansion
from card.speculation.drafters.growth.frontier import (
    UNEXPANDED,
    Child,
    ranked_children,
    ranking_of,
)
from card.speculation.drafters.growth.lattice import (
    NgramWeights,
    Paths,
    Weigh,
    likeliest_paths,
    unweighed,
)
from card.speculation.drafters.interface import DraftConfig, DraftedSession, GrowingTree, Nodes
from card.speculation.drafters.tree import DraftPass, DraftPlan, TreeDrafter, follow_text
from card.speculation.sources.ngram import NgramProposer
from card.speculation.sources.tree import score_exponent

_FOLLOWED = 0.05
"""A block stands behind the likeliest path, as far as the path has this probability."""

_NODES_PER_PLACE = 4
"""Nodes of a block, for each of its places."""

_MEMORY = 32
"""Number of recent blocks that decide how far blocks reach."""


class Reach:
    """How likely the best path of a block is right up to each place, by recent blocks."""

    def __init__(self, block: int) -> None:
        self._chances = [0.7 ** (place + 1) for place in range(block)]

    def learn(self, chances: Sequence[float]) -> None:
        """Learn from the best path of a block: the probability of each of its beginnings."""
        for place, chance in enumerate(chances[: len(self._chances)]):
            self._chances[place] += (chance - self._chances[place]) / _MEMORY

    def best_masks(self, curve: CostCurve, given: int, most: int) -> int:
        """Number of masks with the most gain per millisecond, at most `most`.

        given  rows that the pass has anyway
        """
        if not curve.numbers:
            return most
        best, best_rate, gain = 0, 0.0, 0.0
        for masks, chance in enumerate(self._chances[: most + 1]):
            gain += chance
            rate = gain / curve.pass_ms(given + masks)
            if rate > best_rate:
                best, best_rate = masks, rate
        return best


class ParallelDrafter(TreeDrafter):
    """Grows trees by blocks, on an engine with a draft that has masks."""

    runs_ahead: ClassVar[bool] = False
    ranks_path: ClassVar[bool] = True
    """Whether a pass over a path ranks the children of each of its nodes; if not, of the last."""

    def __init__(self, model: Engine, config: DraftConfig) -> None:
        super().__init__(model, config)
        self._block = min(config.block, config.depth)
        ids = list(config.mask_ids)
        missing = self._block - 1 - len(ids)
        self._masks = [*ids[: self._block - 1], *ids[-1:] * missing]
        self._reach = Reach(self._block)

    # --- plan ---------------------------------------------------------------------------------

    def _plan(
        self, session: DraftedSession, chunk: int, sharing: int, *, is_chain: bool = False
    ) -> DraftPlan | None:
        if session.constraint is not None or not self._masks:
            return super()._plan(session, chunk, sharing, is_chain=is_chain)
        drafted, tree = self._trees[session.number], session.tree
        depth = self._depth(session)
        known = self._engine.length(drafted.engine_session)
        rows = max(1, DRAFT_ROWS // sharing)
        missing = session.tokens[known : known + chunk]
        end = known + len(missing)
        follow_text(drafted.proposer, session.tokens, end)
        if end < len(session.tokens):
            return DraftPlan(missing, chunk)
        if missing:
            most = min(rows - 1, depth - 1, self._engine.most_rows - len(missing))
            masks = self._masks_of(session, len(missing), most, sharing)
            return DraftPlan(missing, chunk, Chosen([ROOT]), masks)
        room = tree.capacity - max(len(tree), drafted.pending)
        chain = self._chain(session, drafted, depth, min(rows, room))
        if not chain:
            return None
        most = min(rows - len(chain), depth - 2 - tree.depth[chain[-1]], room - len(chain))
        masks = self._masks_of(session, len(chain), most, sharing)
        return DraftPlan((), chunk, Chosen(chain), masks)

    def _masks_of(self, session: DraftedSession, given: int, most: int, sharing: int) -> int:
        """Masks of a pass that has `given` rows anyway."""
        if session.passes > 1:  # the pacing asks for so many tokens
            most = min(most, session.passes - 1)
        most = max(0, min(most, len(self._masks)))
        return self._reach.best_masks(self._share(sharing)[2], given, most)

    def _chain(
        self, session: DraftedSession, drafted: DraftedTree, depth: int, most: int
    ) -> list[int]:
        """Unexpanded nodes of the path to the next node of the growth rule and of the likeliest
        path below it, at most `most`; empty: nothing can be expanded."""
        tree = session.tree
        view = drafted.view(session, tree)
        taken = drafted.frontier.take(view, 1, depth) if most > 0 else []
        if not taken:
            return []
        chain, above = taken[:1], tree.parent[taken[0]]
        while above != ROOT and drafted.entry[above] == UNEXPANDED:
            chain.insert(0, above)
            above = tree.parent[above]
        exponent = score_exponent(greedy=session.request.parameters.is_greedy)
        least = exponent * math.log(_FOLLOWED)
        children = view.children()
        while below := children.get(chain[-1]):
            node = max(below, key=drafted.rank.__getitem__)
            if tree.depth[node] >= depth - 1 or drafted.rank[node] < least:
                break
            chain.append(node)
        return chain[:most]

    def _ranked(self, chain: list[int]) -> list[int]:
        """The nodes of a path with a row of logits in its pass."""
        return chain if self.ranks_path else chain[-1:]

    # --- forward ------------------------------------------------------------------------------

    def _pass(self, session: DraftedSession, plan: DraftPlan, proposed: Sequence[int]) -> DraftPass:
        if plan.chosen is None or plan.masks is None:
            return super()._pass(session, plan, proposed)
        drafted, tree, chain = self._trees[session.number], session.tree, plan.chosen.nodes
        masks = self._masks[: plan.masks]
        wanted = len(self._ranked(chain)) + len(masks)
        first = len(session.tokens) + 1 + tree.depth_of(self._ranked(chain)[0])
        positions = [*range(first, first + wanted)]
        ranking = ranking_of(positions, session.request.parameters, drafted.noise)
        if plan.text:
            tokens, parents = [*plan.text, *masks], None
        else:
            tokens = [*(tree.token[node] for node in chain), *masks]
            above = tree.parent[chain[0]]
            before = FOLLOWS_PREFIX if above == ROOT else drafted.entry[above]
            pending = drafted.pending
            parents = [before, *range(pending, pending + len(tokens) - 1)]
        rows = SequenceTokens(drafted.engine_session, tokens, parents, wanted, ranking)
        return DraftPass(rows, len(plan.text), Expansion(chain, []), positions, block=True)

    # --- grow ---------------------------------------------------------------------------------

    def _grow(self, session: DraftedSession, planned: DraftPass, logits: Logits) -> Nodes:
        if planned.expansion is None or not planned.block:
            return super()._grow(session, planned, logits)
        drafted, text = self._trees[session.number], planned.text
        chain = planned.expansion.nodes
        tree = GrowingTree(session.tree.capacity) if text else session.tree
        ranked = ranked_children(logits, planned.positions, session.request.parameters)
        depth = tree.depth_of(self._ranked(chain)[0])
        places = [drafted.frontier.hang(row, at) for at, row in enumerate(ranked, depth)]
        if text:
            drafted.clear()
        found, ranks = self._nodes(session, drafted, tree, chain, places)
        drafted.add(tree, found.parents, ranks)
        if text:
            self._engine.commit_kv(drafted.engine_session, range(text))
        else:
            drafted.expand(chain)
            self._engine.commit_kv(drafted.engine_session, (), range(drafted.pending))
        if not drafted.frontier.shares:
            return found
        return self._with_copies(session, drafted, found, tree)

    def _nodes(
        self,
        session: DraftedSession,
        drafted: DraftedTree,
        tree: GrowingTree,
        chain: list[int],
        places: Sequence[list[Child]],
    ) -> tuple[Nodes, list[float]]:
        """The new children of the chain's nodes and the paths of the block behind them, and the
        rank of each given its parent.

        places  children of the ranked nodes of the chain, then of the masks
        """
        paths = Paths(tree)
        ranked = self._ranked(chain)
        for node, children in zip(ranked[:-1], places, strict=False):
            for child in children:
                paths.add(node, child)
        block = places[len(ranked) - 1 :]
        weigh = self._weigh(session, drafted, [] if chain[0] == ROOT else tree.path(chain[-1]))
        totals = likeliest_paths(paths, chain[-1], block, _NODES_PER_PLACE * len(block), weigh)
        exponent = score_exponent(greedy=session.request.parameters.is_greedy)
        self._reach.learn([math.exp(total / exponent) for total in totals])
        nodes = Nodes(
            paths.token,
            paths.parent,
            paths.logprob,
            passes=len(block),
            replaces=chain[0] == ROOT,
        )
        return nodes, paths.rank

    def _weigh(self, session: DraftedSession, drafted: DraftedTree, behind: Sequence[int]) -> Weigh:
        """How the growth rule weighs steps through a block that stands behind these tokens."""
        parameters, noise = session.request.parameters, drafted.noise
        if not drafted.frontier.weighs_ngrams or parameters.filters:
            return unweighed
        first = len(session.tokens) + len(behind)

        def followers(path: Sequence[int]) -> dict[int, float]:
            return drafted.proposer.followers([*behind, *path])

        def noise_of(place: int, tokens: Sequence[int]) -> list[float]:
            columns = np.searchsorted(noise.ids, tokens).clip(max=len(noise.ids) - 1)
            drawn = noise.at(first + place)[columns]
            known = noise.ids[columns] == np.asarray(tokens)
            found: list[float] = np.where(known, drawn, -np.inf).tolist()
            return found

        adds_noise = not parameters.is_greedy or bool(parameters.logit_bias)
        exponent = score_exponent(greedy=parameters.is_greedy)
        return NgramWeights(followers, exponent, noise_of if adds_noise else None)

    def _new_proposer(self) -> NgramProposer:
        return NgramProposer(frozen=self._config.ngrams)
