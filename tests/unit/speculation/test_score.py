"""Ranks: log-probabilities raised to an exponent, and normalised again below each node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.cache import ROOT, Tree
from card.speculation.sources.tree import ranked_below, sharpened

rows = st.lists(st.floats(-6, 6), min_size=2, max_size=40).map(
    lambda logits: np.array(sorted(logits, reverse=True))
)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    return found


@given(rows, st.sampled_from([1.0, 2.0, 3.0]))
def test_of_a_whole_distribution_the_ranks_are_its_softmax_sharpened(
    logits: NDArray[np.float64], exponent: float
) -> None:
    found = sharpened(log_softmax(logits).tolist(), exponent)
    np.testing.assert_allclose(found, log_softmax(exponent * logits), atol=1e-6)


@given(rows, st.integers(1, 8), st.sampled_from([2.0, 3.0]))
def test_what_is_not_told_makes_no_rank_too_great(
    logits: NDArray[np.float64], told: int, exponent: float
) -> None:
    found = np.array(sharpened(log_softmax(logits)[:told].tolist(), exponent))
    truth = log_softmax(exponent * logits)[:told]
    assert (found <= truth + 1e-6).all()
    assert (found <= 1e-9).all()


def test_a_path_ranks_as_its_nodes_do_below_each_other() -> None:
    score = np.log([0.6, 0.3, 0.6 * 0.5, 0.6 * 0.4])
    tree = Tree(5, [10, 11, 12, 13], [ROOT, ROOT, 0, 0], score.tolist())
    below_root = sharpened(np.log([0.6, 0.3]).tolist(), 3.0)
    below_first = sharpened(np.log([0.5, 0.4]).tolist(), 3.0)
    found = ranked_below(tree, ROOT, 3.0)
    assert (found.token, found.parent) == (tree.token, tree.parent)
    assert found.score == pytest.approx(
        [*below_root, *(below_root[0] + rank for rank in below_first)]
    )
    behind = ranked_below(tree, 0, 3.0)
    assert (behind.token, behind.parent) == ([12, 13], [ROOT, ROOT])
    assert behind.score == pytest.approx(below_first)


@pytest.mark.parametrize("score", [[-np.inf, -np.inf], [0.0, -1e308], [-1e308, -1e308]])
def test_no_score_however_small_is_in_the_way(score: list[float]) -> None:
    assert max(ranked_below(Tree(0, [1, 2], [ROOT, 0], score), ROOT, 3.0).score, default=0) <= 0.0
    assert max(sharpened(score, 3.0)) <= 0.0
