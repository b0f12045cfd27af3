"""What a growth rule decides: which nodes of a tree are expanded next, what hangs below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from card.cache import ROOT
from card.speculation.drafters.growth.children import Child, worthwhile_children
from card.speculation.tree import GrowingTree, Nodes

UNEXPANDED = -1
"""KV entry of a node whose token was never forwarded, so its children are unknown."""

OpenNode = tuple[int, float, int]
"""Number, score and depth of a node."""


@dataclass(frozen=True, slots=True)
class GrowthConfig:
    """The settings that growth rules go by.

    siblings        children of a node by its depth, the text's end first (`sampled`)
    fan_out         tokens that are prepared for at each place of a chain (`fan_out`)
    doubt           probability up to which a token is doubtful (`branch`)
    doubt_branches  branches at the most doubtful token (`branch`)
    shared_tokens   last tokens that must agree for nodes to share what is below them (`graph`)
    """

    siblings: Sequence[int] = (4, 2, 2)
    fan_out: int = 3
    doubt: float = 0.3
    doubt_branches: int = 3
    shared_tokens: int = 2


class TreeView(NamedTuple):
    """One session's tree as growth rules see it.

    entry             [nodes] KV entry of every node, or `UNEXPANDED`
    rank              [nodes] of every node's path, by which candidates are compared
    text              prompt and committed output
    is_greedy         the target draws nothing
    num_draft_tokens  γ of the request
    """

    tree: GrowingTree
    entry: Sequence[int]
    rank: Sequence[float]
    text: Sequence[int]
    is_greedy: bool = True
    num_draft_tokens: int = 8

    def is_open(self, node: int, depth: int) -> bool:
        """Whether `node` can be expanded now: it was not yet, its parent was, and its children end
        above `depth`."""
        tree = self.tree
        if self.entry[node] != UNEXPANDED or tree.depth[node] >= depth - 1:
            return False
        parent = tree.parent[node]
        return parent == ROOT or self.entry[parent] != UNEXPANDED

    def children(self) -> dict[int, list[int]]:
        """The nodes below each node that has any, likeliest first; those of the text's end under
        `ROOT`."""
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(self.tree.parent):
            below.setdefault(parent, []).append(node)
        for nodes in below.values():
            nodes.sort(key=lambda node: -self.tree.score[node])
        return below


def end_of(node: int, children: dict[int, list[int]]) -> tuple[int, int]:
    """The last node of the chain of likeliest children from `node` on, and the chain's tokens."""
    length = 1
    while below := children.get(node):
        node, length = below[0], length + 1
    return node, length


class Frontier:
    """A growth rule at work on one session's tree. A rule without a memory of its own looks at the
    tree in `take`, and leaves `push` and `refill` as they are.

    shares      `copies` may have something to add
    runs_ahead  what it expands next is mostly the likeliest child of what it expanded last, so that
                several passes may be made before it is asked again
    """

    shares: ClassVar[bool] = False
    runs_ahead: ClassVar[bool] = False

    def __init__(self, config: GrowthConfig) -> None:
        self.config = config

    def push(self, node: int, score: float, depth: int) -> None:
        """A node may be expanded from now on."""

    def refill(self, nodes: Iterable[OpenNode]) -> None:
        """These may be expanded and nothing else."""

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        """At most `width` nodes to expand now. One too deep for its children to end above `depth`
        is forgotten until the next refill, and so is one that was expanded meanwhile."""
        raise NotImplementedError

    def hang(self, found: list[Child], depth: int) -> list[Child]:
        """Which of the children of a row become nodes.

        found  likeliest first
        depth  of the row's token; -1 for the text's end
        """
        return worthwhile_children(found)

    def copies(self, view: TreeView, depth: int) -> tuple[Nodes, list[float]]:
        """What is added to the tree after a pass, because nodes share what is below them; and the
        rank of each node given its parent.

        depth  tokens that the tree may run ahead of the text
        """
        return Nodes(), []
