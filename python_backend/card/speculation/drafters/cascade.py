"""Cascade speculative drafting (CS Drafting, arXiv 2312.11462): n-grams draft for the draft.

The paper's bottom drafter copies the tokens that followed the longest known context. The draft
reviews the copy in one pass, and leniently: a copied token stays if it is among the children that
are worth a node. So one pass of the draft makes the tokens that it keeps, and one of its own (the
paper's vertical cascade). The horizontal cascade, in which the cheaper drafter drafts the later
positions, is the target's `NgramSource` behind every chain.
"""

from __future__ import annotations

from card.speculation.drafters.tree import TreeDrafter


class CascadeDrafter(TreeDrafter):
    """A tree drafter that reviews long chains of n-grams."""

    most_proposals = 10
    """Tokens that the paper's bottom drafter copies."""
    runs_ahead = False
