"""Nodes with the same last tokens share their subtrees (GSD, arXiv 2407.16207).

Different branches often contain the same tokens a few places later. A node with the same last
tokens as an expanded node is not expanded itself: it borrows that node's subtree. The cache holds
trees with one parent a node, so borrowed nodes are copied. Copies take nodes, but neither rows of a
draft pass nor KV entries. A copy was drafted in another context; the target verifies it in its own.
When a commit runs through copies, the draft reads those tokens as text.

Under noise a node's children depend on its position, so only nodes of one depth share. The order of
growth is best-first; the paper sets thresholds for each pair of models.
"""

from __future__ import annotations

from collections.abc import Sequence

from card.cache import ROOT
from card.speculation.drafters.growth.frontier import UNEXPANDED, UNLIKELY, Frontier, TreeView
from card.speculation.drafters.interface import Nodes

Ending = tuple[int, ...]
"""The last tokens of a path, then its depth; 0 if the depth does not matter."""


class Graph(Frontier):
    """Expands the likeliest nodes with an ending that no expanded node has."""

    shares = True

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        lenders = _Lenders(view, self.config.shared_tokens)
        taken: list[int] = []
        chosen = set[Ending]()
        found = [node for node in range(len(view.tree)) if view.is_open(node, depth)]
        for node in sorted(found, key=lambda node: -view.rank[node]):
            ending = lenders.endings[node]
            if len(taken) < width and ending not in chosen and lenders.of(node) is None:
                chosen.add(ending)
                taken.append(node)
        return taken

    def copies(self, view: TreeView, depth: int) -> tuple[Nodes, list[float]]:
        tree, lenders = view.tree, _Lenders(view, self.config.shared_tokens)
        children, rank, score = view.children(), [*view.rank], [*tree.score]
        token, parent, depths = [*tree.token], lenders.parent, [*tree.depth]
        first, saved, node = len(token), 0, 0
        while node < len(token):  # which grows
            lender = lenders.of(node) if depths[node] < depth - 1 else None
            if lender is not None and not (node < first and view.entry[node] != UNEXPANDED):
                below = children.setdefault(node, [])
                known = {token[child] for child in below}
                for child in children.get(lender, []):
                    likely = rank[node] + rank[child] - rank[lender]
                    if token[child] in known or likely <= UNLIKELY or len(token) == tree.capacity:
                        continue
                    below.append(len(token))
                    lenders.add(node, token[child], depths[node] + 1)
                    token.append(token[child])
                    rank.append(likely)
                    score.append(score[node] + score[child] - score[lender])
                    depths.append(depths[node] + 1)
                saved += bool(below) and not known
            node += 1
        new = range(first, len(token))
        logprobs = [min(0.0, score[node] - score[parent[node]]) for node in new]
        copies = Nodes(token[first:], parent[first:], logprobs, saved=saved)
        return copies, [rank[node] - rank[parent[node]] for node in new]


class _Lenders:
    """Finds the node from which another node borrows its children.

    endings, parent  [nodes] of the tree and of copies that are added to it
    """

    def __init__(self, view: TreeView, shared_tokens: int) -> None:
        self._count = shared_tokens
        self._tail = tuple(view.text[-shared_tokens:])
        self._is_greedy = view.is_greedy
        self.parent: list[int] = []
        self.endings: list[Ending] = []
        for above, token, depth in zip(
            view.tree.parent, view.tree.token, view.tree.depth, strict=True
        ):
            self.add(above, token, depth)
        self._expanded: dict[Ending, list[int]] = {}
        for node, ending in enumerate(self.endings):
            if view.entry[node] != UNEXPANDED:
                self._expanded.setdefault(ending, []).append(node)

    def add(self, parent: int, token: int, depth: int) -> None:
        """Add a node that does not lend, at least not yet."""
        above: Sequence[int] = self._tail if parent == ROOT else self.endings[parent][:-1]
        place = 0 if self._is_greedy else depth
        self.parent.append(parent)
        self.endings.append((*(*above, token)[-self._count :], place))

    def of(self, node: int) -> int | None:
        """An expanded node with the same ending that is no ancestor of `node`."""
        for lender in self._expanded.get(self.endings[node], []):
            above = node
            while above > lender:
                above = self.parent[above]
            if above != lender:
                return lender
        return None
