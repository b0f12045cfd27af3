"""Multi-candidate drafting: every node has k children, sampled without replacement, k by its depth
(MCSD, arXiv 2401.06706).

The k best of the draft's perturbed scores are a sample of k without replacement (Gumbel-top-k). For
a greedy text they are the k likeliest. Exact acceptance needs no special rule for siblings.
"""

from __future__ import annotations

from card.speculation.drafters.growth.frontier import Child, Frontier, TreeView


class Sampled(Frontier):
    """Grows layer by layer, one layer for each number in `siblings`."""

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        depth = min(depth, len(self.config.siblings))
        depths = view.tree.depth
        found = [node for node in range(len(depths)) if view.is_open(node, depth)]
        layer = min((depths[node] for node in found), default=0)
        newest = [node for node in found if depths[node] == layer]
        return sorted(newest, key=lambda node: -view.rank[node])[:width]

    def hang(self, found: list[Child], depth: int) -> list[Child]:
        siblings = self.config.siblings
        return found[: siblings[depth + 1]] if depth + 1 < len(siblings) else []
