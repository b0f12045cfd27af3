"""What a guide allows below each row of a draft pass, so that no candidate goes against it."""

from __future__ import annotations

from card.constraints import GuideError
from card.constraints.compiler import Constraint
from card.speculation.drafters.draft_pass import Expansion
from card.speculation.drafters.growth.frontier import Masks
from card.speculation.tree import GrowingTree


def masks_of(
    constraint: Constraint | None, expansion: Expansion, tree: GrowingTree
) -> Masks | None:
    """Of every row. None: everything is allowed everywhere, as also while the guide is compiled or
    where it cannot be followed: the target holds the text to it by itself."""
    if constraint is None or not constraint.is_ready:
        return None
    try:
        return [constraint.allowed_behind(path) for path in _paths(expansion, tree)]
    except GuideError:
        return None


def _paths(expansion: Expansion, tree: GrowingTree) -> list[list[int]]:
    """Tokens from the root of the tree to every row, that of the row included."""
    paths = [tree.path(node) for node in expansion.nodes]
    for above, token in expansion.proposals:
        paths.append([*paths[above], token])
    return paths
