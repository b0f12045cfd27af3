"""The rows of a draft pass for one session, the new nodes, and chains of passes.

A pass expands nodes of the session's tree. N-gram proposals may follow one of these nodes. A chain
of passes runs without a look at their results in between: each pass expands the likeliest child of
the node that the pass before expanded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from card.cache import ROOT
from card.constraints.constraint import DraftConstraint
from card.engines import FOLLOWS_PREFIX, Engine, Logits, Ranking, SequenceTokens
from card.engines.interface import CostCurve
from card.speculation.drafters.growth.frontier import (
    UNEXPANDED,
    Child,
    Frontier,
    Masks,
    PositionNoise,
    TreeView,
    ranked_children,
    ranking_of,
)
from card.speculation.drafters.interface import DraftedSession, GrowingTree, Nodes, ReRoot
from card.speculation.sources.ngram import NgramProposer

NO_NODE = -2
"""Marks a forwarded row that did not become a node."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Rows of a pass in order: `nodes`, then `proposals`.

    nodes      unexpanded nodes of the tree, or `ROOT` alone behind a text
    proposals  (row that the proposal follows, proposed token), rows before their proposals
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

    def masks(self, constraint: DraftConstraint | None, tree: GrowingTree) -> Masks | None:
        """The mask of the ids that a guide allows below every row. None: every id is allowed, also
        while the guide compiles and where it is too slow; the target enforces the guide in any
        case."""
        if constraint is None:
            return None
        paths = [tree.path(node) for node in self.nodes]
        for above, token in self.proposals:
            paths.append([*paths[above], token])
        return constraint.masks_behind(paths)

    def tree_rows(
        self, tree: GrowingTree, entry: Sequence[int], pending: int
    ) -> tuple[list[int], list[int]]:
        """Tokens and parents (pending KV entries) of the rows; the first row's entry is `pending`.

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
    """Limits of one pass of one session.

    width      most nodes that the pass expands
    proposals  most tokens proposed behind one of them
    depth      tokens that the tree may run ahead of the text
    room       most rows
    curve      costs of a pass, by the rows of the session
    exponent   of `card.speculation.sources.tree`
    """

    width: int
    proposals: int
    depth: int
    room: int
    curve: CostCurve
    exponent: float


class Chosen(NamedTuple):
    """Nodes to expand, and the node that proposals may follow.

    nodes      unexpanded nodes of the tree, or `ROOT` alone behind a text
    place      index in `nodes` of the node that proposals follow
    behind     tokens from the root to that node
    proposals  most tokens that may be proposed there
    """

    nodes: list[int]
    place: int = 0
    behind: Sequence[int] = ()
    proposals: int = 0

    def with_proposals(self, proposed: Sequence[int]) -> Expansion:
        """The expansion of these nodes with a chain of proposals."""
        above = [self.place, *range(len(self.nodes), len(self.nodes) + len(proposed))]
        return Expansion(self.nodes, list(zip(above, proposed, strict=False)))


def worthwhile(curve: CostCurve, ranks: Sequence[float], exponent: float) -> int:
    """Number of nodes to expand now, at least one.

    The gain of a node is the probability of its path; the gain of a pass is the sum over its nodes.
    So a tree with one nearly certain path grows deep, and a tree with many likely paths grows wide,
    as far as rows are cheap.

    ranks  [nodes] log-probabilities of their paths times `exponent`, best first
    """
    return curve.best_rows([math.exp(rank / exponent) for rank in ranks])


def choose_nodes(view: TreeView, frontier: Frontier, limits: Limits) -> Chosen | None:
    """The next nodes by the growth rule, None if there are none; proposals may follow the likeliest
    node."""
    tree, rank = view.tree, view.rank
    nodes = frontier.take(view, min(limits.width, limits.room), limits.depth)
    if not nodes:
        return None
    if len(nodes) > 1:
        count = worthwhile(limits.curve, [rank[node] for node in nodes], limits.exponent)
        for node in nodes[count:]:
            frontier.push(node, rank[node], tree.depth[node])
        nodes = nodes[:count]
    # Proposals cost rows, so they follow the node where the tree most likely gets deeper.
    place = max(range(len(nodes)), key=lambda row: rank[nodes[row]])
    node = nodes[place]
    most = min(limits.proposals, limits.depth - 2 - tree.depth[node], limits.room - len(nodes))
    return Chosen(nodes, place, tree.path(node), max(0, most))


def nodes_of(
    expansion: Expansion, children: list[list[Child]], tree: GrowingTree, *, copied: bool
) -> tuple[Nodes, list[float], list[int]]:
    """The new children of every row that is a node, as far as the tree has room; their ranks given
    their parents; and the node of each row.

    A proposal is a node if it is among the children of the row that it follows.

    copied  nodes may have children before they are expanded
    """
    tokens, parents = list[int](), list[int]()
    logprobs, ranks = list[float](), list[float]()
    rows = list(expansion.nodes)
    hung: list[dict[int, int]] = []  # nodes of every row, by token
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


@dataclass(slots=True)
class DraftedTree:
    """A drafter's state of one session.

    engine_session  KV cache; its prefix is the committed text, perhaps without its last tokens
    entry           [nodes] pending KV entry of every node of the tree, or `UNEXPANDED`
    rank            [nodes] rank of every node's path, by which the tree grows
    pending         number of KV entries behind the prefix
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

    def clear(self) -> None:
        """Forget all nodes; nothing is pending."""
        self.entry, self.rank, self.pending = [], [], 0
        self.frontier.refill(())

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
        """Offer new nodes to the growth rule; they are numbered behind the nodes of the tree.

        parents  [nodes] parent of each
        ranks    [nodes] rank of each, given its parent
        """
        known = len(tree)
        depth: list[int] = []  # of the new nodes
        for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True), known):
            is_first = parent == ROOT
            self.entry.append(UNEXPANDED)
            self.rank.append(rank if is_first else self.rank[parent] + rank)
            above = tree.depth_of(parent) if parent < known else depth[parent - known]
            depth.append(above + 1)
            self.frontier.push(node, self.rank[node], above + 1)

    def expand(self, rows: Sequence[int]) -> None:
        """Record the KV entries that a pass made for the nodes of its rows.

        rows  the node of each row, or `NO_NODE`
        """
        for at, node in enumerate(rows, self.pending):
            if node != NO_NODE:
                self.entry[node] = at
        self.pending += len(rows)

    def expand_behind_text(self, rows: Sequence[int]) -> list[int]:
        """Record a pass that read the end of the text and proposals behind it. Returns the indices
        of the proposals that became nodes; their entries become the pending ones.

        rows  the node of each proposal, or `NO_NODE`
        """
        right = [index for index, node in enumerate(rows) if node != NO_NODE]
        for at, index in enumerate(right):
            self.entry[rows[index]] = at
        self.pending = len(right)
        return right


@dataclass(frozen=True, slots=True)
class DraftChain:
    """One session's passes, first to last.

    text   tokens of the text that the first pass reads and expands behind; may be empty
    node   the node that the first pass expands: an unexpanded node, or `ROOT` behind a text
    """

    session: DraftedSession
    drafted: DraftedTree
    text: Sequence[int]
    node: int

    @property
    def depth(self) -> int:
        """Depth of the first node; -1 for the text's end."""
        return self.session.tree.depth_of(self.node)

    @property
    def entry(self) -> int:
        """The pending KV entry that the last row of the first pass becomes."""
        return len(self.text) - 1 if self.text else self.drafted.pending

    def rankings(self, passes: int) -> list[Ranking]:
        """The ranking of each of `passes` passes."""
        parameters, noise = self.session.request.parameters, self.drafted.noise
        return [ranking_of([self._position(at)], parameters, noise) for at in range(passes)]

    def rows(self, ranking: Ranking) -> SequenceTokens:
        """The rows of the first pass."""
        drafted = self.drafted
        if self.text:
            return SequenceTokens(drafted.engine_session, self.text, logits=1, ranking=ranking)
        expansion = Expansion([self.node], [])
        tokens, parents = expansion.tree_rows(self.session.tree, drafted.entry, drafted.pending)
        return SequenceTokens(drafted.engine_session, tokens, parents, ranking=ranking)

    def grow(self, found: Sequence[Logits]) -> tuple[Nodes, list[int]]:
        """The best children of every expanded node, and these nodes: one a pass, `NO_NODE` where
        the tree had no room."""
        drafted, tree, expanded = self.drafted, self.session.tree, [self.node]
        parameters = self.session.request.parameters
        tokens, parents, logprobs = list[int](), list[int](), list[float]()
        for at, logits in enumerate(found):
            (ranked,) = ranked_children(logits, [self._position(at)], parameters)
            children = drafted.frontier.hang(ranked, self.depth + at)
            expansion = Expansion(expanded[-1:], [])
            nodes, ranks, _ = nodes_of(expansion, [children], tree, copied=False)
            drafted.add(tree, nodes.parents, ranks)
            below = {token: node for node, token in enumerate(nodes.tokens, len(tree))}
            tree = tree.with_nodes(nodes)
            expanded.append(below.get(int(logits.best()[0][-1, 0]), NO_NODE))
            tokens += nodes.tokens
            parents += nodes.parents
            logprobs += nodes.logprobs
        return Nodes(tokens, parents, logprobs, passes=len(found)), expanded[:-1]

    def keep(self, engine: Engine, expanded: Sequence[int]) -> None:
        """The KV entries of the text join the prefix, those of nodes stay."""
        drafted, text = self.drafted, self.text
        if not text:
            drafted.expand(expanded)
            return
        right = drafted.expand_behind_text(expanded[1:])
        surviving = [len(text) + index for index in right]
        engine.commit_kv(drafted.engine_session, range(len(text)), surviving)

    def _position(self, at: int) -> int:
        """Position of the children of pass `at`, counted from the first pass."""
        return len(self.session.tokens) + 1 + self.depth + at
