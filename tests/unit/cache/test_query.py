"""The query: descend along what is committed, then the most that can be expected below."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from card.cache import ROOT, Candidates, Tree, descend
from card.speculation.sources.tree import best_chain, best_subtree, ranked_below, sharpened

LIKELY = 1e-2
"""Below this probability a candidate is not worth a row (`card.cache.tree`)."""


def tree_of(nodes: list[tuple[int, int, float]], root_length: int = 5) -> Tree:
    """A tree from (token, parent, probability given the parent)."""
    scores: list[float] = []
    for _, parent, probability in nodes:
        scores.append(math.log(probability) + (0.0 if parent == ROOT else scores[parent]))
    return Tree(
        root_length, [token for token, _, _ in nodes], [parent for _, parent, _ in nodes], scores
    )


@st.composite
def trees(draw: st.DrawFn, most: int = 14) -> Tree:
    count = draw(st.integers(0, most) | st.integers(most // 2, most))
    return tree_of(
        [
            (
                draw(st.integers(0, 5)),
                draw(st.integers(-1, index - 1)),
                draw(st.sampled_from([0.9, 0.7, 0.5, 0.31, 0.2, 0.07, 0.003])),
            )
            for index in range(count)
        ]
    )


def path_to(tree: Tree, node: int) -> list[int]:
    """Nodes from the root to `node`."""
    path: list[int] = []
    while node != ROOT:
        path.insert(0, node)
        node = int(tree.parent[node])
    return path


def below(tree: Tree, node: int) -> list[int]:
    """Descendants of `node` that are likely enough, all the way down."""
    base = tree.score[node] if node != ROOT else 0.0
    found = []
    for index in range(len(tree.token)):
        path = path_to(tree, index)
        if node != ROOT:
            if node not in path[:-1]:
                continue
            path = path[path.index(node) + 1 :]
        if all(tree.score[step] - base >= np.log(LIKELY) for step in path):
            found.append(index)
    return found


def expected(tree: Tree, node: int, nodes: list[int]) -> float:
    """Accepted tokens to be expected of these candidates behind `node`."""
    base = tree.score[node] if node != ROOT else 0.0
    return sum(math.exp(tree.score[i] - base) for i in nodes)


def chain_tokens(tree: Tree, node: int, leaf: int) -> list[int]:
    path = path_to(tree, leaf)
    return path if node == ROOT else path[path.index(node) + 1 :]


def assert_chain(found: Candidates) -> None:
    assert found.is_chain
    assert found.parents == list(range(ROOT, len(found) - 1))


@given(trees(), st.lists(st.integers(0, 5), max_size=5))
def test_descend_follows_committed_tokens_or_misses(tree: Tree, committed: list[int]) -> None:
    node = descend(tree, ROOT, committed)
    tokens_of = {i: [tree.token[j] for j in path_to(tree, i)] for i in range(len(tree.token))}
    if node is None:
        # With the first of several equal siblings followed, a miss may hide behind the others.
        siblings = list(zip(tree.parent, tree.token, strict=True))
        assume(len(set(siblings)) == len(siblings))
        assert committed not in tokens_of.values()
    elif node == ROOT:
        assert committed == []
    else:
        assert tokens_of[node] == committed


@given(trees(), st.integers(0, 8), st.data())
def test_the_best_chain_is_the_best_of_all_paths(
    tree: Tree, limit: int, data: st.DataObject
) -> None:
    node = data.draw(st.just(ROOT) | st.integers(ROOT, len(tree.token) - 1))
    found = best_chain(tree, node, limit)
    assert_chain(found)
    assert len(found) <= limit
    paths = [chain_tokens(tree, node, leaf) for leaf in below(tree, node)]
    best = max((expected(tree, node, p) for p in paths if len(p) <= limit), default=0.0)
    matching = [p for p in paths if [tree.token[i] for i in p] == found.tokens] or [[]]
    assert max(expected(tree, node, p) for p in matching) == pytest.approx(best)


@given(trees(most=9), st.integers(1, 6), st.data())
def test_a_subtree_with_room_to_branch_is_the_best_of_all(
    tree: Tree, limit: int, data: st.DataObject
) -> None:
    node = data.draw(st.just(ROOT) | st.integers(ROOT, len(tree.token) - 1))
    likely = below(tree, node)
    found = best_subtree(tree, node, limit, branches=limit)
    best = 0.0
    for count in range(1, min(limit, len(likely)) + 1):
        for some in combinations(likely, count):
            if all(tree.parent[i] == node or tree.parent[i] in some for i in some):
                best = max(best, expected(tree, node, list(some)))
    assert sum(weights_of(tree, node, found)) == pytest.approx(best)


def weights_of(tree: Tree, node: int, found: Candidates) -> list[float]:
    """Probabilities of the candidates; equal siblings are taken likeliest first."""
    base = tree.score[node] if node != ROOT else 0.0
    taken: set[int] = set()
    nodes: list[int] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        above = node if parent == ROOT else nodes[parent]
        fitting = [
            i
            for i in range(len(tree.token))
            if tree.parent[i] == above and tree.token[i] == token and i not in taken
        ]
        nodes.append(max(fitting, key=lambda i: (tree.score[i], -i)))
        taken.add(nodes[-1])
    return [math.exp(tree.score[i] - base) for i in nodes]


@pytest.mark.parametrize("exponent", [1.0, 2.0, 4.0])
def test_chances_are_the_probabilities_that_the_scores_were_made_of(exponent: float) -> None:
    tree = tree_of([(1, ROOT, 0.8**exponent), (2, 0, 0.5**exponent)])
    for found in (best_chain(tree, ROOT, 8, exponent), best_subtree(tree, ROOT, 8, 2, exponent)):
        assert found.tokens == [1, 2]
        assert found.chances == pytest.approx([0.8, 0.4])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 5), st.floats(max_value=0)), max_size=12),
    st.integers(0, 6),
    st.integers(1, 3),
)
def test_any_sound_tree_gives_bounded_candidates(
    nodes: list[tuple[int, int, float]], limit: int, branches: int
) -> None:
    """Scores of a hostile draft need not fall along a path, nor be finite."""
    tree = Tree.checked(
        0,
        [token for token, _, _ in nodes],
        [min(parent, i - 1) for i, (_, parent, _) in enumerate(nodes)],
        [score for *_, score in nodes],
        vocabulary=4,
    )
    assert tree is not None
    for node in range(ROOT, len(nodes)):
        chain = best_chain(tree, node, limit)
        assert_chain(chain)
        assert len(chain) <= limit
        subtree = best_subtree(tree, node, limit, branches)
        assert len(subtree) <= limit
        assert len(set(range(len(subtree))) - set(subtree.parents)) <= branches


@pytest.mark.parametrize("score", [[-np.inf, -np.inf], [0.0, -1e308], [-1e308, -1e308]])
def test_ranks_when_scores_are_extreme_are_at_most_one(score: list[float]) -> None:
    assert max(ranked_below(Tree(0, [1, 2], [ROOT, 0], score), ROOT, 3.0).score, default=0) <= 0.0
    assert max(sharpened(score, 3.0)) <= 0.0
