"""The candidate tree as the simulation needs it: where the text is, and what competes with it.

It mirrors `card.drafting` and `card.cache.tree`: nodes on the text's path carry the measured
ranks and confidences; of a node beside it only its probability matters, because it takes rows from
the others. Such a node continues like a place of the text drawn at random.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from card.cache import ROOT
from card.speculation.drafters.growth import GROWTHS, UNEXPANDED, GrowthConfig, TreeView
from card.speculation.drafters.growth.frontier import Child
from card.speculation.ngram import JUDGED
from card.speculation.tree import GrowingTree, Nodes, score_exponent
from planning.acceptance import ABSENT, MISSED, RIGHT, Foresight, TextRecord
from planning.errors import PlanError

WORTH_A_NODE = 0.01
"""`growth.children`: a child less likely than this, given its parent, is no node."""

_BARELY_A_NODE = math.log(WORTH_A_NODE) + 1e-9

WORTH_A_LOOK = 1e-2
"""`card.cache.tree`: a node less likely than this, given the query's, is not looked at."""

WORTH_A_PROPOSAL = 0.2
"""`card.speculation.ngram`: the draft makes no proposal less likely than this to come true."""


class Node:
    """One candidate token.

    place     index of its token in the output; -1 for the end of the prompt
    row       place of the text whose prediction its children take; None: not yet drawn
    on_path   it and all above it are the text
    score     log-probability of its path, from wherever the tree once began
    at        when it was published, milliseconds; expanded: its children are known
    """

    __slots__ = ("at", "children", "expanded", "on_path", "place", "row", "score")

    def __init__(self, place: int, on_path: bool, score: float, at: float) -> None:
        self.place = place
        self.row: int | None = place + 1 if on_path else None
        self.on_path = on_path
        self.score = score
        self.at = at
        self.expanded = False
        self.children: list[Node] = []

    def next_on_path(self) -> Node | None:
        """The child that is the text's next token."""
        return next((child for child in self.children if child.on_path), None)


@dataclass(frozen=True)
class Text:
    """A text and everything that decides which of its tokens are candidates."""

    record: TextRecord
    foresight: Foresight

    def __len__(self) -> int:
        return len(self.record.ranks)

    @cached_property
    def _log_probabilities(self) -> list[list[float]]:
        return [
            [
                math.log(max(p, 1e-6))
                for rank, p in enumerate(level)
                if rank == 0 or p > WORTH_A_NODE
            ]
            for level in self.foresight.children
        ]

    def rank(self, place: int) -> int | None:
        """The draft's rank of the token at `place`; None: not among those it keeps."""
        found = self.record.ranks[place]
        return None if found == MISSED else int(found)

    @cached_property
    def exponent(self) -> float:
        """By which the draft's log-probabilities are sharpened."""
        return score_exponent(greedy=self.foresight.temperature == 0.0)

    def children(self, row: int) -> list[Child]:
        """The children that stand at place `row`, best first."""
        level, rank = self.record.confidence[row], self.rank(row)
        kept = self._log_probabilities[int(level)]
        # The table holds means; one below them was likelier than the mean, or it were not kept.
        further = 0 if rank is None else max(0, rank + 1 - len(kept))
        found = self._children.get((level, further))
        if found is None:
            found = _told([*kept, *[_BARELY_A_NODE] * further], self.exponent)
            self._children[level, further] = found
        return found

    @cached_property
    def _children(self) -> dict[tuple[str, int], list[Child]]:
        """By confidence, and how many the table does not hold."""
        return {}


def _told(ranks: Sequence[float], exponent: float) -> list[Child]:
    """What the draft tells of children with these ranks, as if it told all there are."""
    flat = [rank / exponent for rank in ranks]
    whole = math.log(sum(map(math.exp, flat)))
    return list(map(Child, range(len(ranks)), [min(0.0, one - whole) for one in flat], ranks))


class Chain(NamedTuple):
    """What a query found, and the chance of each of its nodes to be accepted."""

    nodes: list[Node]
    chances: list[float]


class NgramProposals:
    """N-gram proposals; both loops keep their own hit rate."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self.hit_rate = text.record.hit_rate

    def extend(self, first: int, last: int) -> None:
        """The text grew by the tokens from place `first` to before `last`."""
        for place in range(first, last):
            right = self._text.record.proposals[place] == RIGHT
            self.hit_rate += (right - self.hit_rate) / JUDGED

    def behind(
        self, row: int, most: int, *, on_path: bool, least: float = WORTH_A_PROPOSAL
    ) -> Iterator[tuple[bool, float]]:
        """Of each proposal made at `row` and on, whether it foresees the text there, and the
        chance of it and those before it to come true. Those less likely than `least` are not made.
        """
        record, likelihood, right = self._text.record, 1.0, on_path
        for place in range(row, min(row + most, len(self._text))):
            chance = record.chance(place)
            likelihood *= self.hit_rate if chance is None else chance
            found = record.proposals[place]
            if likelihood < least or found == ABSENT:
                return
            right = right and found == RIGHT
            yield right, likelihood


class Parcels(NgramProposals):
    """What a smaller draft writes: a token everywhere, however likely it is."""

    def behind(
        self, row: int, most: int, *, on_path: bool, least: float = 0.0
    ) -> Iterator[tuple[bool, float]]:
        parcels, right = self._text.record.parcels, on_path
        if parcels is None:
            raise PlanError("the profile tells nothing of a smaller draft: measure it again")
        for found in parcels[row : row + most]:
            right = right and found == RIGHT
            yield right, 1.0


class CandidateTree:
    """What the draft has grown below the last token it knows to be committed.

    Nodes are chosen and hung by the product's own growth rules; its two heaps are done here, which
    is quicker.
    """

    def __init__(
        self,
        text: Text,
        capacity: int,
        seed: int,
        growth: str = "best_first",
        config: GrowthConfig | None = None,
        num_draft_tokens: int = 8,
    ) -> None:
        self._text = text
        self._capacity = capacity
        self._heap = _HEAPS.get(growth)
        self._rule = GROWTHS[growth](config or GrowthConfig())
        self._num_draft_tokens = num_draft_tokens
        self._random = random.Random(seed)
        self.root = Node(-1, True, 0.0, 0.0)
        self.count = 0
        self._deepest = self.root.place
        self._open: list[tuple[float, int, Node]] = []
        self._hung = 0
        self._exponent = text.exponent

    @property
    def room(self) -> int:
        return self._capacity - self.count

    @property
    def height(self) -> int:
        """Nodes of the longest path below the root."""
        return self._deepest - self.root.place

    def re_root(self, place: int) -> int:
        """Make the committed token at `place` the root; returns how many tokens of the text
        between the old root and it were never forwarded, itself included."""
        node: Node = self.root
        unread = 0 if node.expanded else 1
        while node.place < place:
            child = node.next_on_path()
            if child is None:
                unread += place - node.place
                self.root = Node(place, True, 0.0, 0.0)
                self._recount()
                return unread
            node = child
            unread += not node.expanded
        self.root = node
        self._recount()
        return unread

    def _recount(self) -> None:
        self.count, self._open, self._deepest = 0, [], self.root.place
        below = list(self.root.children)
        while below:
            node = below.pop()
            self.count += 1
            self._deepest = max(self._deepest, node.place)
            if node.expanded:
                below += node.children
            else:
                self._offer(node)

    def _offer(self, node: Node) -> None:
        self._hung += 1
        heapq.heappush(self._open, (-node.score, self._hung, node))

    def grow(self, width: int, depth: int) -> list[Node]:
        """The nodes that a pass expands."""
        if self._heap is not None:
            return self._heap(self, width, depth)
        nodes, view = self._view()
        return [nodes[number] for number in self._rule.take(view, width, depth)]

    def _view(self) -> tuple[list[Node], TreeView]:
        """The nodes below the root, parents first, and what the growth rule sees of them."""
        nodes, parents = list[Node](), list[int]()
        level = [(child, ROOT) for child in self.root.children]
        while level:
            below = list[tuple[Node, int]]()
            for node, parent in level:
                below += [(child, len(nodes)) for child in node.children]
                nodes.append(node)
                parents.append(parent)
            level = below
        scores = [self.root.score, *(node.score for node in nodes)]
        given = [min(0.0, scores[1 + at] - scores[1 + parents[at]]) for at in range(len(nodes))]
        tree = GrowingTree(self._capacity)
        # A profile holds no tokens: here no two are the same, so nodes have nothing to share.
        tree.add(Nodes(range(len(nodes)), parents, given))
        entry = [0 if node.expanded else UNEXPANDED for node in nodes]
        greedy = self._exponent == score_exponent(greedy=True)
        return nodes, TreeView(tree, entry, tree.score, [], greedy, self._num_draft_tokens)

    def likeliest(self, width: int, depth: int) -> list[Node]:
        """Best-first growth: the `width` likeliest unexpanded nodes less than `depth` ahead."""
        return self._take(width, self.root.place + depth - 1, least=0)

    def newest_layer(self, width: int, depth: int) -> list[Node]:
        """CARD's rule: the `width` likeliest of the deepest unexpanded nodes."""
        last = self.root.place + depth - 1
        deepest = max((n.place for _, _, n in self._open if n.place <= last), default=0)
        return self._take(width, last, least=deepest)

    def _take(self, width: int, last: int, least: int) -> list[Node]:
        """The likeliest open nodes between two places; they stay open until they are expanded."""
        taken: list[Node] = []
        aside: list[tuple[float, int, Node]] = []
        while self._open and len(taken) < width:
            entry = heapq.heappop(self._open)
            node = entry[2]
            if node.expanded:
                continue
            aside.append(entry)
            if least <= node.place <= last:
                taken.append(node)
        for entry in aside:
            heapq.heappush(self._open, entry)
        return taken

    def row(self, node: Node) -> int:
        """The place of the text whose prediction the node's children take."""
        if node.row is None:
            node.row = int(self._random.random() * len(self._text))
        return node.row

    def expand(self, node: Node, at: float) -> None:
        """Hang the children of a node that was forwarded."""
        if node.expanded:
            return
        node.expanded = True
        row = self.row(node)
        if row >= len(self._text):
            return
        own = self._text.rank(row) if node.on_path else None
        found = self._text.children(row)
        for child in self._rule.hang(found, node.place - self.root.place - 1)[: self.room]:
            hung = Node(node.place + 1, child.token == own, node.score + child.rank, at)
            node.children.append(hung)
            self._offer(hung)
        if node.children:
            self.count += len(node.children)
            self._deepest = max(self._deepest, node.place + 1)

    def ahead(self, place: int, most: int, published_before: float) -> tuple[int, bool]:
        """Nodes of the best chain of at most `most` below the committed token at `place`, and
        whether one of them has siblings."""
        chain = self.query(place, most, published_before).nodes
        hung = {id(child): node for node in (self.root, *chain) for child in node.children}
        forks = any(len(hung[id(node)].children) > 1 for node in chain if id(node) in hung)
        return len(chain), forks

    def query(self, place: int, limit: int, published_before: float) -> Chain:
        """The chain of at most `limit` nodes below the committed token at `place` with the most
        accepted ones to be expected."""
        node: Node | None = self.root
        while node is not None and node.place < place:
            node = node.next_on_path()
            if node is not None and node.at > published_before:
                node = None
        if node is None or node.place > place:
            return Chain([], [])
        worth = node.score + math.log(WORTH_A_LOOK)
        nodes = _best_chain(node, node.score, worth, limit, published_before)[1]
        scores = [min(0.0, found.score - node.score) for found in nodes]
        chances = [math.exp(score / self._exponent) for score in scores]
        return Chain(nodes, chances)


def _best_chain(
    node: Node, base: float, worth: float, limit: int, published_before: float
) -> tuple[float, list[Node]]:
    best, chain = 0.0, list[Node]()
    if not limit:
        return best, chain
    for child in node.children:
        if child.score < worth or child.at > published_before:
            continue
        value, below = _best_chain(child, base, worth, limit - 1, published_before)
        value += math.exp(min(0.0, child.score - base))
        if value > best:
            best, chain = value, [child, *below]
    return best, chain


_HEAPS: dict[str, Callable[[CandidateTree, int, int], list[Node]]] = {
    "best_first": CandidateTree.likeliest,
    "layered": CandidateTree.newest_layer,
}
"""Growth rules that only order open nodes."""
