"""Snapshots of trees: whatever lies in the cache, the target reads a sound tree or none."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.cache import ROOT, Geometry, Pool, Tree

GEOMETRY = Geometry(slots=1, nodes=128, prompt=8, output=8, bad_words=1, bad_word_tokens=1)
VOCABULARY = 1000
SESSION_ID = 7

Nodes = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool.create(tmp_path_factory.mktemp("pool"), 1, GEOMETRY)
    yield pool
    pool.unlink()


def nodes_of(parents: list[int], first_token: int = 0) -> Nodes:
    count = len(parents)
    return (
        np.arange(first_token, first_token + count) % VOCABULARY,
        np.array(parents, np.int64),
        -np.arange(count, dtype=np.float64) / 8,
    )


def assert_same(tree: Tree | None, root_length: int, nodes: Nodes) -> None:
    assert tree is not None
    assert tree.root_length == root_length
    token, parent, score = nodes
    np.testing.assert_array_equal(tree.token, token)
    np.testing.assert_array_equal(tree.parent, parent)
    np.testing.assert_array_equal(tree.score, score)


@pytest.mark.parametrize("left", [2**63 - 1, 2**63 - 2, -(2**63), -1, 2**62])
def test_no_count_of_trees_that_was_left_there_stops_the_next_draft(pool: Pool, left: int) -> None:
    pool.slots[0]["flip"] = left
    draft, target = pool.draft_slot(0), pool.target_slot(0)
    for first in range(3):
        draft.replace(SESSION_ID, 12 + first, *nodes_of([ROOT, 0], first))
        assert_same(target.tree(SESSION_ID, VOCABULARY), 12 + first, nodes_of([ROOT, 0], first))
    pool.slots[0]["flip"] = 0


words = st.one_of(
    st.integers(-3, VOCABULARY + 2),
    st.sampled_from([-(1 << 63), -(1 << 31), 1 << 31, (1 << 63) - 1]),
)
scores = st.one_of(st.floats(-5, 0), st.floats())  # NaN and infinities included


@given(
    flip=words,
    session_ids=st.tuples(*[st.sampled_from([SESSION_ID, SESSION_ID, 0, -1])] * 2),
    counts=st.tuples(words, words),
    roots=st.tuples(words, words),
    passes=st.tuples(words, words),
    nodes=st.lists(st.tuples(words, words, scores), max_size=12),
    filler=st.tuples(words, words, scores),
)
def test_hostile_bytes_give_a_sound_tree_or_none(
    pool: Pool,
    flip: int,
    session_ids: tuple[int, int],
    counts: tuple[int, int],
    roots: tuple[int, int],
    passes: tuple[int, int],
    nodes: list[tuple[int, int, float]],
    filler: tuple[int, int, float],
) -> None:
    record = pool.slots[0]
    record["flip"] = flip
    record["tree_session_id"] = session_ids
    record["node_count"] = counts
    record["root_length"] = roots
    record["passes"] = passes
    for half in (0, 1):
        for name, column in zip(("node_token", "node_parent", "node_score"), range(3), strict=True):
            record[name][half] = filler[column]
            record[name][half][: len(nodes)] = [node[column] for node in nodes]
    target = pool.target_slot(0)
    assert isinstance(target.draft_progress(SESSION_ID, 3).passes, int)
    tree = target.tree(SESSION_ID, VOCABULARY)
    if tree is None:
        return
    half = flip & 1
    assert session_ids[half] == SESSION_ID
    assert len(tree.token) == counts[half]
    assert all(0 <= token < VOCABULARY for token in tree.token)
    assert all(ROOT <= parent < node for node, parent in enumerate(tree.parent))
    assert not any(math.isnan(score) for score in tree.score)


@given(st.integers(0, 60), st.data())
def test_one_unsound_node_condemns_the_tree(pool: Pool, at: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(at + 1, 64))
    token, parent, score = nodes_of([i - 1 for i in range(count)])
    draft, target = pool.draft_slot(0), pool.target_slot(0)
    pool.slots["flip"] = 0
    draft.replace(SESSION_ID, 1, token, parent, score)
    assert target.tree(SESSION_ID, VOCABULARY) is not None
    name, value = data.draw(
        st.sampled_from(
            [
                ("node_token", -1),
                ("node_token", VOCABULARY),
                ("node_parent", -2),
                ("node_parent", at),
                ("node_parent", at + 1),
                ("node_score", np.nan),
                ("node_score", np.inf),
            ]
        )
    )
    record = pool.slots[0]
    record[name][int(record["flip"]) & 1][at] = value
    assert target.tree(SESSION_ID, VOCABULARY) is None


# --- a writer in another process ------------------------------------------------------------


def published(version: int) -> tuple[Nodes, int]:
    """Every byte of the tree with this root length, and how many nodes it had at first."""
    first = 1 + version * 37 % 100
    count = first + version * 13 % 28
    index = np.arange(count)
    token = (version * 7919 + index * 31) % VOCABULARY
    parent = np.where(index == 0, ROOT, (version * 17 + index * 5) % np.maximum(index, 1))
    return (token, parent.astype(np.int64), -(version % 911) - index / 256), first


def publish_for_ever(directory: Path, stop: Event) -> None:
    """The writer: flips to version after version, appending to each."""
    pool = Pool.open(directory, 1, GEOMETRY)
    assert pool is not None
    draft = pool.draft_slot(0)
    trees = [published(version) for version in range(997)]
    version = 0
    while not stop.is_set():
        for _ in range(50):
            (token, parent, score), first = trees[version % 997]
            draft.replace(SESSION_ID, version % 997, token[:first], parent[:first], score[:first])
            draft.append(token[first:], parent[first:], score[first:], version)
            version += 1


def test_every_snapshot_is_a_tree_that_the_writer_published(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, 1, GEOMETRY)
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    writer = spawn.Process(target=publish_for_ever, args=(tmp_path, stop))
    writer.start()
    target = pool.target_slot(0)
    roots: set[int] = set()
    try:
        while len(roots) < 60 and writer.is_alive():
            tree = target.tree(SESSION_ID, VOCABULARY)
            if tree is None:
                continue
            (token, parent, score), first = published(tree.root_length)
            count = len(tree.token)
            assert first <= count <= len(token)
            assert_same(tree, tree.root_length, (token[:count], parent[:count], score[:count]))
            roots.add(tree.root_length)
    finally:
        stop.set()
        writer.join()
    assert writer.exitcode == 0
    assert len(roots) == 60
