"""One session's tree as its drafter knows it: KV entries of nodes, and by what it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from card.cache import ROOT
from card.sampling import PositionNoise
from card.speculation.drafters.growth.expansion import NO_NODE
from card.speculation.drafters.growth.frontier import UNEXPANDED, Frontier, TreeView
from card.speculation.drafters.interface import DraftedSession
from card.speculation.ngram import NgramProposer
from card.speculation.tree import GrowingTree, ReRoot


@dataclass(slots=True)
class Branches:
    """What a drafter keeps of one session.

    engine_session  KV cache: its prefix is the committed text, perhaps without its last tokens
    entry           [nodes] pending KV entry of every node of the tree, or `UNEXPANDED`
    rank            [nodes] of every node's path, by which the tree grows
    pending         KV entries behind the prefix
    """

    engine_session: int
    noise: PositionNoise
    frontier: Frontier
    proposer: NgramProposer = field(default_factory=NgramProposer)
    entry: list[int] = field(default_factory=list)
    rank: list[float] = field(default_factory=list)
    pending: int = 0

    def view(self, session: DraftedSession, tree: GrowingTree) -> TreeView:
        """`tree` as the growth rule sees it."""
        request = session.request
        return TreeView(
            tree,
            self.entry,
            self.rank,
            session.tokens,
            request.parameters.is_greedy,
            request.num_draft_tokens,
        )

    def re_root(self, tree: GrowingTree, re_root: ReRoot) -> tuple[list[int], list[int]]:
        """Follow the tree to its new root. Returns the KV entries of the committed path, and those
        of surviving nodes, which become the pending ones in this order."""
        confirmed = [self.entry[node] for node in re_root.path if self.entry[node] != UNEXPANDED]
        left = [self.entry[node] for node in re_root.surviving]
        surviving = sorted(at for at in left if at != UNEXPANDED)
        moved = {at: index for index, at in enumerate(surviving)} | {UNEXPANDED: UNEXPANDED}
        self.entry = [moved[at] for at in left]
        base = self.rank[re_root.path[-1]] if re_root.surviving else 0.0
        self.rank = [self.rank[node] - base for node in re_root.surviving]
        self.pending = len(surviving)
        self.frontier.refill(
            (node, self.rank[node], tree.depth[node])
            for node, at in enumerate(self.entry)
            if at == UNEXPANDED
        )
        return confirmed, surviving

    def add(self, tree: GrowingTree, parents: Sequence[int], ranks: Sequence[float]) -> None:
        """Let the growth rule choose among nodes that come behind those of the tree.

        parents  [nodes] of each; ranks: of each, given its parent
        """
        known = len(tree)
        depth: list[int] = []  # of those that come
        for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True), known):
            is_first = parent == ROOT
            self.entry.append(UNEXPANDED)
            self.rank.append(rank if is_first else self.rank[parent] + rank)
            above = tree.depth_of(parent) if parent < known else depth[parent - known]
            depth.append(above + 1)
            self.frontier.push(node, self.rank[node], above + 1)

    def expand(self, rows: Sequence[int]) -> None:
        """A pass gave the nodes of its rows entries.

        rows  the node of each, or `NO_NODE`
        """
        for at, node in enumerate(rows, self.pending):
            if node != NO_NODE:
                self.entry[node] = at
        self.pending += len(rows)

    def expand_behind_text(self, rows: Sequence[int]) -> list[int]:
        """A pass read the end of the text, and proposals behind it. Returns the proposals, counted
        from the first, that became nodes: their entries become the pending ones.

        rows  the node of each proposal, or `NO_NODE`
        """
        right = [index for index, node in enumerate(rows) if node != NO_NODE]
        for at, index in enumerate(right):
            self.entry[rows[index]] = at
        self.pending = len(right)
        return right
