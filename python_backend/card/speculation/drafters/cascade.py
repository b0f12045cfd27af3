"""Cascade speculative drafting (CS Drafting, arXiv 2312.11462): n-grams draft for the draft.

The paper's bottom drafter copies what followed the longest known context. The draft reviews the
copy in one pass, and leniently: a copied token stays if it is among the children that are worth a
node. So one pass of the draft makes as many tokens as it lets through, and one of its own (the
paper's vertical cascade). Its horizontal cascade, later positions by the cheaper drafter, is what
the target's `NgramSource` does behind every chain.
"""

from __future__ import annotations

from card.speculation.drafters.tree import TreeDrafter


class CascadeDrafter(TreeDrafter):
    """A tree drafter that reviews long chains of n-grams."""

    most_proposals = 10
    """As many as the paper's bottom drafter copies."""
    runs_ahead = False
