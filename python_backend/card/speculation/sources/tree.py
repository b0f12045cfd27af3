"""The query of CARD: the likeliest continuation in the draft's tree (arXiv 2508.04462, §3).

`SHAPES` names the shapes of a query: the best chain, or the best subtree.

Draft and target rank candidates by sharpened log-probabilities of the draft. The target takes the
best of its scores, so the draft's likeliest token is right more often than its softmax says, most
of all in greedy decoding. Sharpening raises every probability to an exponent and normalises the
children of one node again, so that the tree goes deeper where the draft is sure
(benchmarks/NOTES.md). A rank divided by the exponent is the log-probability that the candidate is
right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from card.cache import (
    LEAST_CHANCE,
    ROOT,
    Candidates,
    Tree,
    descend,
    follow,
)
from card.speculation.sources.interface import QueriedSession, Source

_GREEDY = 3.0
_SAMPLED = 2.0


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


_LEAST = math.log(LEAST_CHANCE)


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


def best_chain(tree: Tree, node: int, limit: int, exponent: float = 1.0) -> Candidates:
    """The path of at most `limit` tokens below `node` with the most expected accepted tokens.

    tree      with ranks as scores (`ranked_below`)
    exponent  log-probabilities times this are the ranks (`score_exponent`)

    The likeliest child of each node can lead into a short branch. The expected number of accepted
    tokens of a path is the sum of its nodes' path probabilities, so this function maximises that.
    """
    below, weight = _likely_descendants(tree, node, limit)
    value: dict[int, float] = {}
    heir: dict[int, int] = {}
    parent = tree.parent
    for index, probability in zip(reversed(below), reversed(weight), strict=True):
        total = probability + value.get(index, 0.0)
        above = parent[index]
        if total > value.get(above, 0.0):
            value[above] = total
            heir[above] = index
    base = tree.score[node] if node != ROOT else 0.0
    tokens: list[int] = []
    chances: list[float] = []
    while (child := heir.get(node)) is not None:
        tokens.append(tree.token[child])
        chances.append(math.exp(min(tree.score[child] - base, 0.0) / exponent))
        node = child
    return Candidates.chain(tokens, chances)


def best_subtree(
    tree: Tree, node: int, limit: int, branches: int, exponent: float = 1.0
) -> Candidates:
    """The likeliest connected subtree below `node`: at most `limit` nodes on `branches` paths.

    exponent  as in `best_chain`
    """
    below, weight = _likely_descendants(tree, node, limit)
    order = sorted(range(len(below)), key=lambda i: (-weight[i], below[i]))
    place = {node: ROOT}
    has_child: set[int] = set()
    leaves = 0
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    for i in order:
        if len(tokens) == limit:
            break
        above = tree.parent[below[i]]
        if above not in place:
            continue
        opens_branch = above in has_child or not tokens
        if opens_branch and leaves == branches:
            continue
        leaves += opens_branch
        has_child.add(above)
        place[below[i]] = len(tokens)
        tokens.append(tree.token[below[i]])
        parents.append(place[above])
        chances.append(weight[i] ** (1.0 / exponent))
    return Candidates(tokens, parents, chances)


def _likely_descendants(tree: Tree, node: int, reach: int) -> tuple[list[int], list[float]]:
    """Nodes at most `reach` levels below `node`, in order, with their probability given `node`;
    nodes below `LEAST_CHANCE` are left out."""
    base = tree.score[node] if node != ROOT else 0.0
    if not math.isfinite(base):
        return [], []
    parent, score, least = tree.parent, tree.score, base + math.log(LEAST_CHANCE)
    depth = {node: 0}
    below: list[int] = []
    weight: list[float] = []
    for index in range(node + 1, len(score)):
        if score[index] < least:
            continue
        above_depth = depth.get(parent[index], reach)
        if above_depth < reach:
            depth[index] = above_depth + 1
            below.append(index)
            weight.append(math.exp(min(score[index] - base, 0.0)))
    return below, weight


@dataclass(frozen=True)
class Shape:
    """Chooses candidates below a node of a tree.

    is_chain  the shape is one path
    take      of (tree, node, limit, branches, exponent): at most `limit` candidates on at most
              `branches` paths. The tree's scores are ranks, sharpened by the exponent
    """

    is_chain: bool
    take: Callable[[Tree, int, int, int, float], Candidates]


SHAPES: dict[str, Shape] = {
    "chain": Shape(True, lambda tree, node, limit, _, power: best_chain(tree, node, limit, power)),
    "subtree": Shape(False, best_subtree),
}
"""Shapes by the value of the setting `speculation.query`."""


class TreeSource(Source):
    """Descends from the tree's root along the committed tokens, then takes the best candidates
    below."""

    needs_draft: ClassVar[bool] = True

    def __init__(self, query: str = "chain", branches: int = 1) -> None:
        self._shape = SHAPES[query]
        self._branches = branches

    def candidates(
        self, session: QueriedSession, behind: Candidates, limit: int, least: float = LEAST_CHANCE
    ) -> Candidates:
        if len(behind) or (found := _end_of_text(session)) is None:
            return behind
        exponent = _exponent(session)
        below = ranked_below(*found, exponent)
        return self._shape.take(below, ROOT, limit, self._branches, exponent)


def chain_ahead(session: QueriedSession, limit: int) -> tuple[int, bool]:
    """Number of tokens of the best chain below the text, at most `limit`, and whether a token of
    the chain has siblings."""
    if (found := _end_of_text(session)) is None:
        return 0, False
    (tree, node), exponent = found, _exponent(session)
    tokens = best_chain(ranked_below(tree, node, exponent), ROOT, limit, exponent).tokens
    path = follow(tree.token, tree.parent, node, tokens)
    return len(tokens), any(tree.parent.count(tree.parent[child]) > 1 for child in path)


def _exponent(session: QueriedSession) -> float:
    return score_exponent(greedy=session.request.parameters.is_greedy)


def _end_of_text(session: QueriedSession) -> tuple[Tree, int] | None:
    """The draft's tree, and its node for the last committed token; None if there is no such
    node."""
    tree, history = session.tree(), session.history
    if tree is None or tree.root_length > len(history):
        return None
    node = descend(tree, ROOT, history.tokens[max(0, tree.root_length) :])
    return None if node is None else (tree, node)
