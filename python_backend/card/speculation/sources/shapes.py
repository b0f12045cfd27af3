"""What a query takes from the draft's tree."""

from __future__ import annotations

from typing import ClassVar

from card.cache import Candidates, Tree, best_chain, best_subtree


class Shape:
    """Chooses candidates below a node of a tree.

    is_chain  it takes one path
    """

    is_chain: ClassVar[bool] = False

    def take(self, tree: Tree, node: int, limit: int, branches: int, exponent: float) -> Candidates:
        """At most `limit` candidates on at most `branches` paths. The scores are ranks, which
        were sharpened by `exponent`."""
        raise NotImplementedError


class Chain(Shape):
    """The path of which most is to be expected."""

    is_chain = True

    def take(self, tree: Tree, node: int, limit: int, branches: int, exponent: float) -> Candidates:
        return best_chain(tree, node, limit, exponent)


class Subtree(Shape):
    """The likeliest nodes."""

    def take(self, tree: Tree, node: int, limit: int, branches: int, exponent: float) -> Candidates:
        return best_subtree(tree, node, limit, branches, exponent)


SHAPES: dict[str, Shape] = {"chain": Chain(), "subtree": Subtree()}
"""By the value of the setting `speculation.query`."""
