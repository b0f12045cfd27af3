"""The candidate tree that streamed requests grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.cache import ROOT, Tree
from card.engines.tensorrt_llm.tree import CandidateTree


def grown() -> CandidateTree:
    """A spine 1, 2, 3 with alternatives 9 beside 1 and 8 beside 3."""
    tree = CandidateTree(16)
    one = tree.add(ROOT, 1, -0.1)
    tree.add(ROOT, 9, -2.0)
    two = tree.add(one, 2, -0.1)
    tree.add(two, 3, -0.5)
    tree.add(two, 8, -1.0)
    return tree


def test_the_tip_is_where_the_likeliest_children_lead() -> None:
    tree = grown()
    assert tree.path(tree.tip()) == [1, 2, 3]
    assert CandidateTree(4).tip() == ROOT


def test_leaves_come_likeliest_first() -> None:
    tree = grown()
    assert [tree.path(node) for node in tree.leaves()] == [[1, 2, 3], [1, 2, 8], [9]]
    assert CandidateTree(4).leaves() == [ROOT]


def test_a_known_child_is_not_added_again() -> None:
    tree = grown()
    assert tree.add(ROOT, 1, -9.0) == 0
    assert len(tree) == 5


def test_re_rooting_keeps_what_stands_below_the_last_committed_token() -> None:
    tree = grown()
    survives = tree.re_root([1, 2])
    assert survives == {2: ROOT, 3: 0, 4: 1}
    assert tree.token == [3, 8]
    assert tree.parent == [ROOT, ROOT]
    assert tree.score == pytest.approx([-0.5, -1.0])
    assert tree.depth == [0, 0]


def test_a_correction_that_the_tree_lacks_leaves_nothing() -> None:
    tree = grown()
    assert tree.re_root([1, 7]) == {}
    assert len(tree) == 0


@given(st.data())
def test_any_growth_and_re_rooting_leaves_a_sound_tree(data: st.DataObject) -> None:
    tree = CandidateTree(64)
    for _ in range(data.draw(st.integers(0, 40))):
        parent = data.draw(st.integers(ROOT, len(tree) - 1))
        tree.add(parent, data.draw(st.integers(0, 3)), data.draw(st.floats(-5, 0.5)))
    committed = data.draw(st.lists(st.integers(0, 3), max_size=3))
    paths = {tuple(tree.path(node)) for node in range(len(tree))}
    tree.re_root(committed)
    assert Tree.checked(0, *tree.arrays(), 4) is not None
    below = {p[len(committed) :] for p in paths if list(p[: len(committed)]) == committed}
    matched = not committed or tuple(committed) in paths
    expected = below - {()} if matched else set()
    assert {tuple(tree.path(node)) for node in range(len(tree))} == expected
