"""The growing tree against a naive model of it: a set of paths."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from card.cache import ROOT
from card.drafting import GrowingTree
from card.drafting.growth import FRONTIERS, UNEXPANDED

Path = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """Probability of the path from the root, and the pending KV entry if it was forwarded."""

    score: float
    entry: int | None


def paths_of(tree: GrowingTree) -> list[Path]:
    """The tokens from the root to every node, in the tree's order."""
    paths: list[Path] = []
    for token, parent in zip(tree.token, tree.parent, strict=True):
        assert ROOT <= parent < len(paths), "parents stand before their children"
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def assert_equals(tree: GrowingTree, model: dict[Path, Node]) -> None:
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths) == len(tree)
    assert set(paths) == set(model)
    for index, path in enumerate(paths):
        node = model[path]
        assert tree.depth[index] == len(path) - 1
        assert tree.score[index] == pytest.approx(node.score)
        assert tree.entry[index] == (UNEXPANDED if node.entry is None else node.entry)


class Pair:
    """The tree and its model, changed together."""

    def __init__(self, capacity: int, growth: str = "best_first") -> None:
        self.tree = GrowingTree(capacity, FRONTIERS[growth]())
        self.model: dict[Path, Node] = {}
        self.pending = 0

    def grow_root(self, tokens: list[int]) -> None:
        if not len(self.tree):
            self._add([()], tokens)

    def grow(self, chosen: list[int], tokens: list[int]) -> None:
        """Forward some unexpanded nodes in one pass and hang `tokens` below each.

        Behind every second node stands a row that belongs to no node.
        """
        paths = paths_of(self.tree)
        nodes = sorted({i % len(paths) for i in chosen}) if paths else []
        nodes = [i for i in nodes if self.tree.entry[i] == UNEXPANDED]
        if not nodes:
            return
        rows: list[int] = []
        for number, node in enumerate(nodes):
            self.model[paths[node]] = Node(self.model[paths[node]].score, self.pending + len(rows))
            rows += [node, GrowingTree.NO_NODE] if number % 2 else [node]
        for entry, row in enumerate(rows, self.pending):
            if row != GrowingTree.NO_NODE:
                self.tree.entry[row] = entry
        self.pending += len(rows)
        self._add([paths[node] for node in nodes], tokens)

    def _add(self, above: list[Path], tokens: list[int]) -> None:
        """Hang `tokens`, likeliest first, below each of `above`, as far as there is room."""
        paths = paths_of(self.tree)
        for path in above:
            given = self.model[path].score if path else 0.0
            ranked = sorted(tokens, key=lambda token: -self._score(path, token))
            room = self.tree.capacity - len(self.tree)
            parent = paths.index(path) if path else ROOT
            self.tree.hang(parent, [(token, self._score(path, token) - given) for token in ranked])
            for token in ranked[:room]:
                below = *path, token
                self.model[below] = Node(self._score(path, token), None)

    def _score(self, path: Path, token: int) -> float:
        """Distinct for every edge, so that what is likeliest is never a matter of taste."""
        above = self.model[path].score if path else 0.0
        salt = hash((len(path), *path, token)) % 9973
        return above - 0.05 - token - salt / 1e4

    def re_root(self, committed: Path) -> None:
        before, paths = self.model, paths_of(self.tree)
        outcome = self.tree.re_root(list(committed))
        matched = 0
        while matched < len(committed) and committed[: matched + 1] in before:
            matched += 1
        assert outcome.matched == matched
        on_path = [before[committed[: n + 1]].entry for n in range(matched)]
        assert outcome.confirmed == [entry for entry in on_path if entry is not None]
        survivors = [
            path
            for path in paths
            if matched == len(committed) and len(path) > matched and path[:matched] == committed
        ]
        entries = sorted(e for path in survivors if (e := before[path].entry) is not None)
        assert outcome.surviving == entries
        self.pending = len(entries)
        base = before[committed].score if survivors else 0.0
        self.model = {
            path[matched:]: Node(
                before[path].score - base,
                None if (entry := before[path].entry) is None else entries.index(entry),
            )
            for path in survivors
        }


tokens = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)
actions: st.SearchStrategy[tuple[str, object, list[int]]] = st.one_of(
    st.tuples(st.just("grow"), st.lists(st.integers(0, 60), min_size=1, max_size=4), tokens),
    st.tuples(st.just("follow"), st.integers(0, 60), st.just([])),
    st.tuples(st.just("commit"), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.just([])),
)


@settings(max_examples=150)
@given(st.integers(4, 40), tokens, st.lists(actions, max_size=14))
def test_re_rooting_keeps_the_descendants_of_the_committed_path_and_nothing_else(
    capacity: int, first: list[int], script: list[tuple[str, object, list[int]]]
) -> None:
    pair = Pair(capacity)
    for action, what, children in script:
        pair.grow_root(first)
        assert_equals(pair.tree, pair.model)
        if action == "grow":
            assert isinstance(what, list)
            pair.grow(what, children)
        elif action == "commit":
            assert isinstance(what, list)
            pair.re_root(tuple(what))
        elif paths := paths_of(pair.tree):
            assert isinstance(what, int)
            pair.re_root(paths[what % min(len(paths), 6)])  # shallow: much survives
        assert_equals(pair.tree, pair.model)


@pytest.mark.parametrize("committed", [0, 1])
def test_a_re_root_takes_the_committed_child_and_never_its_sibling(committed: int) -> None:
    tree = GrowingTree(16)
    tree.hang(ROOT, [(1, -0.1), (2, -3.0)])
    tree.hang(0, [(3, -0.1)])
    tree.hang(1, [(4, -0.5)])
    tree.entry = [0, 1, 2, 3]
    outcome = tree.re_root([[1], [2]][committed])
    assert (outcome.matched, outcome.confirmed) == (1, [committed])
    assert outcome.surviving == [2 + committed]
    assert paths_of(tree) == [[(3,)], [(4,)]][committed]
    assert tree.entry == [0]
    assert tree.score == pytest.approx([[-0.1], [-0.5]][committed])


def test_a_commit_that_the_tree_lacks_leaves_nothing_but_the_shared_path() -> None:
    tree = GrowingTree(16)
    tree.hang(ROOT, [(1, -0.1), (2, -3.0)])
    tree.hang(0, [(3, -0.1)])
    tree.hang(1, [(4, -0.5)])
    tree.entry[:2] = [0, 1]
    outcome = tree.re_root([1, 9])
    assert (outcome.matched, outcome.confirmed, outcome.surviving) == (1, [0], [])
    assert not len(tree)


# --- growth ---------------------------------------------------------------------------------


def grown(script: list[tuple[list[int], list[int]]], growth: str) -> Pair:
    pair = Pair(200, growth)
    pair.grow_root([0, 1, 2])
    for chosen, children in script:
        pair.grow(chosen, children)
    return pair


scripts = st.lists(
    st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=4), tokens), max_size=8
)


@given(scripts, st.integers(1, 8), st.integers(1, 8))
def test_best_first_expands_the_likeliest_nodes_wherever_they_are(
    script: list[tuple[list[int], list[int]]], width: int, depth: int
) -> None:
    pair = grown(script, "best_first")
    paths = paths_of(pair.tree)
    chosen = {paths[i] for i in pair.tree.take(width, depth)}
    open_paths = [p for p, n in pair.model.items() if n.entry is None and len(p) < depth]
    assert chosen == set(sorted(open_paths, key=lambda p: -pair.model[p].score)[:width])


@given(scripts, st.integers(1, 8), st.integers(1, 8))
def test_layered_growth_expands_the_likeliest_of_the_newest_layer(
    script: list[tuple[list[int], list[int]]], width: int, depth: int
) -> None:
    pair = grown(script, "layered")
    paths = paths_of(pair.tree)
    chosen = {paths[i] for i in pair.tree.take(width, depth)}
    open_paths = [p for p, n in pair.model.items() if n.entry is None and len(p) < depth]
    newest = [p for p in open_paths if len(p) == max(map(len, open_paths))]
    assert chosen == set(sorted(newest, key=lambda p: -pair.model[p].score)[:width])
