"""What one draft pass forwards: nodes to expand, and proposals behind one of them; and the nodes
that come of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from card.cache import ROOT
from card.engines import FOLLOWS_PREFIX
from card.engines.row_costs import CostCurve
from card.speculation.drafters.growth.children import Child
from card.speculation.drafters.growth.frontier import Frontier, TreeView
from card.speculation.tree import GrowingTree, Nodes

NO_NODE = -2
"""Stands for a forwarded row that turned out to be no node."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Rows of a pass in order: `nodes`, then `proposals`.

    nodes      unexpanded nodes of the tree, or `ROOT` alone behind a text
    proposals  (row that the proposal stands behind, proposed token), rows before their proposals
    """

    nodes: list[int]
    proposals: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.nodes) + len(self.proposals)

    @property
    def proposed(self) -> list[int]:
        return [token for _, token in self.proposals]

    def depths(self, tree: GrowingTree) -> list[int]:
        """Depth of every row's token; -1 for the text's end."""
        depths = [tree.depth_of(node) for node in self.nodes]
        for above, _ in self.proposals:
            depths.append(depths[above] + 1)
        return depths

    def tree_rows(
        self, tree: GrowingTree, entry: Sequence[int], pending: int
    ) -> tuple[list[int], list[int]]:
        """Tokens and parents (pending KV entries) of the rows, which become `pending` and on.

        entry  KV entry of every node of the tree
        """
        tokens = [tree.token[node] for node in self.nodes]
        above = [tree.parent[node] for node in self.nodes]
        parents = [FOLLOWS_PREFIX if node == ROOT else entry[node] for node in above]
        for row, token in self.proposals:
            tokens.append(token)
            parents.append(pending + row)
        return tokens, parents


class Limits(NamedTuple):
    """Of one pass of one session.

    width      nodes that are expanded, at most
    proposals  tokens proposed behind one of them, at most
    depth      tokens that the tree may run ahead of the text
    room       rows, all told
    curve      of passes, by the rows of the session
    exponent   of `card.speculation.score`
    """

    width: int
    proposals: int
    depth: int
    room: int
    curve: CostCurve
    exponent: float


class Chosen(NamedTuple):
    """Nodes to expand, and where proposals may join them.

    nodes      unexpanded nodes of the tree, or `ROOT` alone behind a text
    place      in `nodes`, of the one that proposals stand behind
    behind     tokens from the root to that one
    proposals  tokens that may be proposed there, at most
    """

    nodes: list[int]
    place: int = 0
    behind: Sequence[int] = ()
    proposals: int = 0

    def with_proposals(self, proposed: Sequence[int]) -> Expansion:
        """With a chain of them."""
        above = [self.place, *range(len(self.nodes), len(self.nodes) + len(proposed))]
        return Expansion(self.nodes, list(zip(above, proposed, strict=False)))


def worthwhile(curve: CostCurve, ranks: Sequence[float], exponent: float) -> int:
    """How many of the nodes to expand now, at least one of them.

    A node is worth as much as the chance that the target comes by it, the chance of its path: what
    a pass gives is the sum over its nodes. So a tree of which one path is nearly certain grows
    deep, and one that could go on in many ways grows wide, as far as rows are cheap here.

    ranks  [nodes] log-probabilities of their paths times `exponent`, best first
    """
    return curve.best_rows([math.exp(rank / exponent) for rank in ranks])


def choose_nodes(view: TreeView, frontier: Frontier, limits: Limits) -> Chosen | None:
    """The next nodes by the growth rule, None if there are none; proposals may follow the likeliest
    of them."""
    tree, rank = view.tree, view.rank
    nodes = frontier.take(view, min(limits.width, limits.room), limits.depth)
    if not nodes:
        return None
    if len(nodes) > 1:
        count = worthwhile(limits.curve, [rank[node] for node in nodes], limits.exponent)
        for node in nodes[count:]:
            frontier.push(node, rank[node], tree.depth[node])
        nodes = nodes[:count]
    # Proposals cost rows, so they go where the tree most likely gets deeper.
    place = max(range(len(nodes)), key=lambda row: rank[nodes[row]])
    node = nodes[place]
    most = min(limits.proposals, limits.depth - 2 - tree.depth[node], limits.room - len(nodes))
    return Chosen(nodes, place, tree.path(node), max(0, most))


def nodes_of(
    expansion: Expansion, children: list[list[Child]], tree: GrowingTree, *, copied: bool
) -> tuple[Nodes, list[float], list[int]]:
    """The children of every row that is a node, as far as the tree lacks them and has room; their
    ranks given their parents; and the node of each row.

    A proposal is a node if it is among the children of the row it stands behind.

    copied  nodes may have children before they are expanded
    """
    tokens, parents = list[int](), list[int]()
    logprobs, ranks = list[float](), list[float]()
    rows = list(expansion.nodes)
    hung: list[dict[int, int]] = []  # of every row, nodes by token
    for row, below in enumerate(children):
        if row >= len(rows):
            above, proposal = expansion.proposals[row - len(expansion.nodes)]
            rows.append(hung[above].get(proposal, NO_NODE))
        nodes = tree.below(rows[row]) if copied else {}
        if rows[row] != NO_NODE:
            for child in below:
                if child.token not in nodes and len(tokens) < tree.room:
                    nodes[child.token] = len(tree) + len(tokens)
                    tokens.append(child.token)
                    parents.append(rows[row])
                    logprobs.append(child.logprob)
                    ranks.append(child.rank)
        hung.append(nodes)
    return Nodes(tokens, parents, logprobs), ranks, rows
