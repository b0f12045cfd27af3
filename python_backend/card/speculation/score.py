"""How candidates are ranked: by the draft's log-probabilities, sharpened.

The target takes the best of its scores, not a draw from them, so the draft's likeliest token is
right more often than its softmax says, most of all where nothing is drawn. So every probability is
raised to an exponent, and what may follow one node is normalised again: with that a tree goes
deeper where it should (benchmarks/NOTES.md). A rank divided by the exponent comes true as a chance.

Trees hold log-probabilities as the draft has them. Whoever ranks candidates sharpens them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from card.cache import LEAST_CHANCE, ROOT, Tree

_GREEDY = 3.0
_SAMPLED = 2.0
_LEAST = math.log(LEAST_CHANCE)


def score_exponent(*, greedy: bool) -> float:
    """The exponent for a text that is decoded greedily, or sampled."""
    return _GREEDY if greedy else _SAMPLED


def sharpened(logprobs: Sequence[float], exponent: float) -> list[float]:
    """Log-probabilities of `p ** exponent`, normalised over what stands below one node.

    Of the tokens that are not told only their share is known. None of them is likelier than the
    least likely one that is told, so they count as that likely each, or as their share.

    logprobs  [nodes] of its children given the node, at most 0
    """
    if not logprobs:
        return []
    # A dozen numbers for each row of a draft pass: NumPy takes longer to begin.
    probabilities = [math.exp(value) for value in logprobs]
    rest = max(1.0 - sum(probabilities), 0.0)
    total = sum([probability**exponent for probability in probabilities])
    total += rest * min(rest, *probabilities) ** (exponent - 1.0)
    if not total > 0.0:  # nothing is likely enough for a number, or one is none
        return [-math.inf] * len(logprobs)
    norm = math.log(total)
    return [exponent * value - norm for value in logprobs]


def ranked_below(tree: Tree, node: int, exponent: float) -> Tree:
    """What is below a node of a tree (or below `ROOT`), with ranks as scores: the nodes that may be
    worth a row. Few of a tree's dozens are, and NumPy takes longer to begin."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for child, parent in enumerate(tree.parent):
        below[parent].append(child)
    ranked, scores = Tree(tree.root_length, [], [], []), tree.score
    kept = [node]
    for place, above in enumerate(kept, ROOT):  # it grows meanwhile
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
