"""Speculation on the outcome: behind a chain, the draft prepares for each answer that the target
may give to it (SSD/Saguaro, arXiv 2603.03251).

An answer is a place of the chain and the token that the target puts there. At each place the
`fan_out` likeliest tokens beside the chain's own are prepared for, and behind the chain's end the
likeliest ones: a chain of γ tokens below each, all of them a token longer with every pass. The
paper's fan-out follows the chance of each place; its code's default, which this is, is the same
everywhere. Where one of them comes, its chain stays when the target commits.
"""

from __future__ import annotations

from card.cache import ROOT
from card.speculation.drafters.growth.frontier import Child, Frontier, TreeView, end_of


class FanOut(Frontier):
    """A chain of γ tokens first, then a chain below every fork."""

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        children, num_draft_tokens = view.children(), view.num_draft_tokens
        chain = [ROOT]
        while len(chain) <= num_draft_tokens and (below := children.get(chain[-1])):
            chain.append(below[0])
        end = chain[-1]
        # The chain's end is forwarded too: what follows when all of it is right is known then.
        if end != ROOT and view.is_open(end, depth):
            return [end]
        on_chain = set(chain)
        ends: list[tuple[int, float, int]] = []
        for node in chain:
            forks = [below for below in children.get(node, []) if below not in on_chain]
            for fork in forks[: self.config.fan_out]:
                last, tokens = end_of(fork, children)
                if tokens <= num_draft_tokens and view.is_open(last, depth):
                    ends.append((tokens, -view.rank[last], last))
        return [node for _, _, node in sorted(ends)[:width]]

    def hang(self, found: list[Child], depth: int) -> list[Child]:
        """One for the chain, the others for forks."""
        return found[: 1 + self.config.fan_out]
