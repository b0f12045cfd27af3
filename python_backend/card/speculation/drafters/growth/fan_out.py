"""Speculation on the outcome: the draft prepares a chain for each likely outcome of a verification
(SSD/Saguaro, arXiv 2603.03251).

An outcome is a place of the verified chain and the target's token at that place. The draft forks at
each place into the `fan_out` likeliest tokens beside the chain's own, and behind the chain's end
into the likeliest ones. Below each fork it drafts a chain of γ tokens; every pass extends all of
these chains by one token. The paper's fan-out follows the probability of each place; this rule uses
the same fan-out everywhere, like the default of the paper's code. If the target commits one of the
forks, its chain survives.
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
        # The chain's end is expanded too, for the case that the whole chain is accepted.
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
        """One child for the chain, the others for forks."""
        return found[: 1 + self.config.fan_out]
