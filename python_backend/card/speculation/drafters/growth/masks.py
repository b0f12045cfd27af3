"""Masks of the ids that a guide allows below each row of a draft pass."""

from __future__ import annotations

from card.constraints.constraint import DraftConstraint
from card.speculation.drafters.draft_pass import Expansion
from card.speculation.drafters.growth.frontier import Masks
from card.speculation.tree import GrowingTree


def masks_of(
    constraint: DraftConstraint | None, expansion: Expansion, tree: GrowingTree
) -> Masks | None:
    """The mask of every row. None: every id is allowed, also while the guide compiles and where it
    is too slow; the target enforces the guide in any case."""
    return None if constraint is None else constraint.masks_behind(_paths(expansion, tree))


def _paths(expansion: Expansion, tree: GrowingTree) -> list[list[int]]:
    """Tokens from the root of the tree to every row, that of the row included."""
    paths = [tree.path(node) for node in expansion.nodes]
    for above, token in expansion.proposals:
        paths.append([*paths[above], token])
    return paths
