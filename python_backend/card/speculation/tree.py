"""The draft's own copy of a candidate tree while it grows, and how candidates are ranked.

Candidates are ranked by sharpened log-probabilities of the draft. The target takes the best of its
scores, so the draft's likeliest token is right more often than its softmax says, most of all in
greedy decoding. Sharpening raises every probability to an exponent and normalises the children of
one node again, so that the tree goes deeper where the draft is sure (benchmarks/NOTES.md). A rank
divided by the exponent is the log-probability that the candidate is right.

Trees hold the draft's own log-probabilities. Code that ranks candidates sharpens them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from card.cache import LEAST_CHANCE, ROOT, Tree, follow


def path_to(node: int, token: Sequence[int], parent: Sequence[int]) -> list[int]:
    """Tokens from the root to `node`, of a tree with the `token` and `parent` of each node."""
    tokens: list[int] = []
    while node != ROOT:
        tokens.append(token[node])
        node = parent[node]
    return tokens[::-1]


class Nodes(NamedTuple):
    """Candidates that a drafter adds to a session's tree, parents before children.

    tokens    [nodes] token ids
    parents   [nodes] number of a node of the tree, or `ROOT`; new nodes are numbered behind the
              nodes of the tree
    logprobs  [nodes] log-probability of each token given its parent, at most 0
    passes    draft passes that the nodes took, as pacings count them; 0 for a pass that only reads
              text
    saved     rows of a pass saved because nodes share their subtrees
    waits     nothing was computed, because the nodes come asynchronously
    replaces  the nodes replace the tree, which had none with KV; they are numbered from 0
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    passes: int = 1
    saved: int = 0
    waits: bool = False
    replaces: bool = False


class ReRoot(NamedTuple):
    """The effect of a commit on a tree, in the node numbers before it.

    committed  tokens, in order
    path       nodes along the committed tokens, as far as the tree had them
    surviving  nodes that stay, in order: node i of the tree was number `surviving[i]`
    """

    committed: list[int]
    path: list[int]
    surviving: list[int]


class GrowingTree:
    """Nodes below the last committed token; parents stand before their children.

    The fields are lists by node: a pass adds a dozen nodes, for which NumPy's overhead is too high.

    token, parent  parent is a node or `ROOT`
    score          log-probability of the path from the root
    depth          0 for children of the root
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.token: list[int] = []
        self.parent: list[int] = []
        self.score: list[float] = []
        self.depth: list[int] = []

    def __len__(self) -> int:
        return len(self.token)

    @property
    def room(self) -> int:
        """Nodes that may still be added."""
        return self.capacity - len(self.token)

    @property
    def height(self) -> int:
        """Nodes of the longest path."""
        return max(self.depth, default=-1) + 1

    def with_nodes(self, nodes: Nodes) -> GrowingTree:
        """A copy of the tree with these nodes added."""
        other = GrowingTree(self.capacity)
        other.token, other.parent = [*self.token], [*self.parent]
        other.score, other.depth = [*self.score], [*self.depth]
        other.add(nodes)
        return other

    def add(self, nodes: Nodes) -> None:
        """Append nodes; if not all fit, only the first of them."""
        room = self.room
        self.token += nodes.tokens[:room]
        self.parent += nodes.parents[:room]
        for parent, logprob in zip(nodes.parents[:room], nodes.logprobs[:room], strict=True):
            is_first = parent == ROOT
            self.score.append(logprob if is_first else self.score[parent] + logprob)
            self.depth.append(0 if is_first else self.depth[parent] + 1)

    def below(self, node: int) -> dict[int, int]:
        """The children of a node (or of `ROOT`) by their tokens."""
        return {self.token[child]: child for child, at in enumerate(self.parent) if at == node}

    def depth_of(self, node: int) -> int:
        """Depth of a node; -1 for `ROOT`."""
        return -1 if node == ROOT else self.depth[node]

    def path(self, node: int) -> list[int]:
        """Tokens from the root to `node`."""
        return path_to(node, self.token, self.parent)

    def re_root(self, committed: list[int]) -> ReRoot:
        """Make the last of the `committed` tokens the root and keep only its descendants.

        If the tree lacks a committed token, the tree becomes empty.
        """
        path = follow(self.token, self.parent, ROOT, committed)
        if len(path) < len(committed) or not path:
            self.clear()
            return ReRoot(committed, path, [])
        return ReRoot(committed, path, self._keep_below(path[-1]))

    def _keep_below(self, root: int) -> list[int]:
        """Drop all but the descendants of `root`; returns the former numbers of those that stay."""
        place = {root: ROOT}
        kept: list[int] = []
        for node in range(root + 1, len(self.token)):
            if self.parent[node] in place:
                place[node] = len(kept)
                kept.append(node)
        above, base = self.score[root], self.depth[root] + 1
        self.token = [self.token[node] for node in kept]
        self.parent = [place[self.parent[node]] for node in kept]
        self.score = [self.score[node] - above for node in kept]
        self.depth = [self.depth[node] - base for node in kept]
        return kept


_GREEDY = 3.0
_SAMPLED = 2.0
_LEAST = math.log(LEAST_CHANCE)


def score_exponent(*, greedy: bool) -> float:
    """The exponent for a text that is decoded greedily, or sampled."""
    return _GREEDY if greedy else _SAMPLED


def sharpened(logprobs: Sequence[float], exponent: float) -> list[float]:
    """Log-probabilities of `p ** exponent`, normalised over the children of one node.

    Of the missing tokens only the total probability is known. None of them is likelier than the
    least likely child, so each counts with that child's probability, or with the total if that is
    smaller.

    logprobs  [nodes] log-probabilities of children given their node, at most 0
    """
    if not logprobs:
        return []
    # NumPy's overhead is too high for a dozen numbers for each row of a draft pass.
    probabilities = [math.exp(value) for value in logprobs]
    rest = max(1.0 - sum(probabilities), 0.0)
    total = sum([probability**exponent for probability in probabilities])
    total += rest * min(rest, *probabilities) ** (exponent - 1.0)
    if not total > 0.0:  # all probabilities underflow to 0, or one is NaN
        return [-math.inf] * len(logprobs)
    norm = math.log(total)
    return [exponent * value - norm for value in logprobs]


def ranked_below(tree: Tree, node: int, exponent: float) -> Tree:
    """The nodes below a node of a tree (or below `ROOT`) that may be worth a row, with ranks as
    scores. They are few, so NumPy's overhead would be too high."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for child, parent in enumerate(tree.parent):
        below[parent].append(child)
    ranked, scores = Tree(tree.root_length, [], [], []), tree.score
    kept = [node]
    for place, above in enumerate(kept, ROOT):  # the loop appends to `kept`
        children = below.get(above)
        if children is None:
            continue
        score = 0.0 if above == ROOT else scores[above]
        rank = 0.0 if place == ROOT else ranked.score[place]
        given = [min(scores[child] - score, 0.0) for child in children]
        for child, step in zip(children, sharpened(given, exponent), strict=True):
            if rank + step >= _LEAST:
                kept.append(child)
                ranked.token.append(tree.token[child])
                ranked.parent.append(place)
                ranked.score.append(rank + step)
    return ranked
