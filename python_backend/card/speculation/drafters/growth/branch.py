"""Branches at a doubtful token: the draft follows one chain while it is sure, and several branches
where it is not (SpecBranch, arXiv 2506.01979).

This is the paper's variant without training. A token is doubtful if its probability under the draft
is `doubt` (ε) or less; a lower probability makes more branches. The draft extends all branches in
one batch while the target verifies the chain before them. The branch that begins with the target's
token survives.
"""

from __future__ import annotations

import math

from card.cache import ROOT
from card.speculation.drafters.growth.frontier import Child, Frontier, TreeView, end_of


class Branch(Frontier):
    """A chain up to the first fork, then γ tokens of every branch there. After a commit, forks
    inside the surviving branch are the next branch points."""

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        children = view.children()
        node = ROOT
        while len(below := children.get(node, [])) == 1:
            node = below[0]
        if not below:
            return [node] if node != ROOT and view.is_open(node, depth) else []
        ends: list[tuple[int, float, int]] = []
        for branch in below:
            last, tokens = end_of(branch, children)
            if tokens < view.num_draft_tokens and view.is_open(last, depth):
                ends.append((tokens, -view.rank[last], last))
        return [node for _, _, node in sorted(ends)[:width]]

    def hang(self, found: list[Child], depth: int) -> list[Child]:
        if not found:
            return found
        chance = math.exp(found[0].logprob)
        if chance > self.config.doubt:
            return found[:1]
        return found[: max(2, math.floor(self.config.doubt_branches * (1.0 - chance)))]
