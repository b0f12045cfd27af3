"""Keys and values: what is kept stays as if read afresh, what is dropped leaves no trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import VOCABULARY, forward_rows, opened, random_tokens, read, read_alone

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.layout import BranchLayout
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine

CONTEXT = 256
BRANCHES = 4
SESSIONS = 3
POISON = 1e4
CLOSE = 1e-5

LogitRows = NDArray[np.float32]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save(path, "qwen3")
    return path


def load(engine_class: type[AnyEngine], directory: Path, branches: int) -> AnyEngine:
    engine = engine_class.load(
        directory,
        EngineOptions(
            context=CONTEXT,
            sessions=SESSIONS,
            branches=branches,
            pending=256,
            dtype="float32",
            graph_rows=(1, 6, 64),
        ),
    )
    return make_row_invariant(engine) if branches else engine


@pytest.fixture(scope="module")
def chains(engine_class: type[AnyEngine], directory: Path) -> AnyEngine:
    return load(engine_class, directory, BRANCHES)


@pytest.fixture(scope="module")
def trees(engine_class: type[AnyEngine], directory: Path) -> AnyEngine:
    return load(engine_class, directory, 0)


def assert_close(found: LogitRows, expected: LogitRows) -> None:
    scale = np.abs(expected).max()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < CLOSE * scale


def poison(engine: AnyEngine, lane: int, first: int) -> None:
    """Put no number into every key of a lane from the place `first` on, and a large one into every
    value."""
    if isinstance(engine, OpenVinoEngine):
        poison_pages(engine)
        return
    heads = engine.architecture.kv_heads
    rows = slice(lane * heads, (lane + 1) * heads)
    with torch.inference_mode():
        for keys, values in zip(engine._kv.keys, engine._kv.values, strict=True):
            keys[rows, :, first:] = torch.nan
            values[rows, first:] = POISON


def poison_pages(engine: OpenVinoEngine) -> None:
    """The same in all places that hold neither a prefix nor a pending entry. Of a page that is
    filled in part the operator scores every place before it leaves some out, so these get large
    numbers."""
    layout, memory = engine._layout, engine.model.pages
    assert isinstance(layout, BranchLayout)
    filled = dict.fromkeys(engine._kv._free, 0)
    for tree in layout._trees:
        filled |= tree.filled
    for page, first in filled.items():
        memory._buffers["keys"][:, page, :, first:] = np.nan if first == 0 else POISON
        memory._buffers["values"][:, page, :, first:] = POISON


# --- chains ---------------------------------------------------------------------------------------

FAN = [FOLLOWS_PREFIX] * BRANCHES


@given(steps=st.lists(st.tuples(st.integers(0, BRANCHES - 1), st.integers(1, 5)), max_size=6))
@settings(max_examples=10, deadline=None)
def test_every_lane_goes_on_from_the_prefix_that_was_kept(
    chains: AnyEngine, steps: list[tuple[int, int]]
) -> None:
    """After any lane won, each of them answers as a session that read the same text."""
    text = random_tokens(10)
    asked = random_tokens(BRANCHES, seed=99)
    with opened(chains) as session:
        read(chains, session, text, [10])
        for step, (winner, length) in enumerate(steps):
            tokens = random_tokens(BRANCHES + length - 1, seed=step)
            tail = range(BRANCHES, BRANCHES + length - 1)
            parents = [*FAN, *([winner, *tail][: len(tail)])]
            forward_rows(chains, [SequenceTokens(session, tokens, parents)])
            chains.commit_kv(session, [winner, *tail])
            text += [tokens[winner], *tokens[BRANCHES:]]
        assert chains.length(session) == len(text)
        found = forward_rows(chains, [SequenceTokens(session, asked, FAN)])[0]
    for token, row in zip(asked, found, strict=True):
        expected = read_alone(chains, [*text, token], [64])[-1]
        np.testing.assert_array_equal(row, expected)


def test_places_behind_the_prefix_never_influence_a_chain(chains: AnyEngine) -> None:
    text, tokens = random_tokens(40), random_tokens(6, seed=1)
    parents = [FOLLOWS_PREFIX, 0, 0, FOLLOWS_PREFIX, 1, 3]
    found = []
    for poisoned in (False, True):
        with opened(chains) as session:
            read(chains, session, text, [17])
            forward_rows(
                chains, [SequenceTokens(session, random_tokens(9, seed=2))]
            )  # rejected, not kept
            if poisoned:
                for lane in range(SESSIONS * BRANCHES):
                    own = lane // BRANCHES == session
                    poison(chains, lane, len(text) if own else 0)
            found.append(forward_rows(chains, [SequenceTokens(session, tokens, parents)])[0])
    np.testing.assert_array_equal(found[1], found[0])


# --- growing trees --------------------------------------------------------------------------------


@dataclass
class Mirror:
    """What a session of a growing tree should hold: its prefix and pending entries."""

    session: int
    text: list[int]
    tokens: list[int]
    parents: list[int]

    def path(self, entry: int) -> list[int]:
        """Entries from the prefix down to `entry`; empty for the prefix itself."""
        path: list[int] = []
        while entry != FOLLOWS_PREFIX:
            path.insert(0, entry)
            entry = self.parents[entry]
        return path

    def read_as(self, entry: int) -> list[int]:
        """The token path that the row of `entry` stands for."""
        return self.text + [self.tokens[e] for e in self.path(entry)]

    def commit_kv(self, entry: int, wanted: list[bool]) -> tuple[list[int], list[int]]:
        """Confirm the path to `entry`; below it stay those `wanted` whose parents stay."""
        confirmed = self.path(entry)
        surviving: list[int] = []
        for child in range(entry + 1, len(self.tokens)):
            parent = self.parents[child]
            if wanted[child % len(wanted)] and (parent == entry or parent in surviving):
                surviving.append(child)
        number = {old: new for new, old in enumerate(surviving)}
        self.text = self.read_as(entry)
        self.parents = [number.get(self.parents[old], FOLLOWS_PREFIX) for old in surviving]
        self.tokens = [self.tokens[old] for old in surviving]
        return confirmed, surviving


places = st.lists(st.integers(0, 999), min_size=1, max_size=6)
grow = st.builds(lambda at: ("grow", at, [True]), places)
keep = st.builds(
    lambda at, wanted: ("keep", [at], wanted),
    st.integers(0, 999),
    st.lists(st.booleans(), min_size=1, max_size=7),
)
Operation = tuple[str, list[int], list[bool]]


def start(engine: AnyEngine, session: int, length: int, seed: int) -> Mirror:
    mirror = Mirror(session, random_tokens(length, seed), [], [])
    read(engine, session, mirror.text, [64])
    return mirror


def grow_below(mirror: Mirror, at: list[int]) -> SequenceTokens:
    """Rows for new entries below chosen ones, which the same pass may append."""
    older = len(mirror.tokens)
    parents = [number % (older + row + 1) - 1 for row, number in enumerate(at)]
    tokens = [(7 * number + older) % VOCABULARY for number in at]
    mirror.tokens += tokens
    mirror.parents += parents
    return SequenceTokens(mirror.session, tokens, parents)


def apply(engine: AnyEngine, mirror: Mirror, operation: Operation) -> None:
    """Do the operation; new rows must answer as a session that read their path."""
    kind, at, wanted = operation
    if kind == "keep":
        entry = at[0] % (len(mirror.tokens) + 1) - 1
        engine.commit_kv(mirror.session, *mirror.commit_kv(entry, wanted))
        assert engine.length(mirror.session) == len(mirror.text)
        return
    rows = grow_below(mirror, at)
    found = forward_rows(engine, [rows])[0]
    first = len(mirror.tokens) - len(at)
    for row, logits in enumerate(found):
        expected = read_alone(engine, mirror.read_as(first + row), [64])[-1]
        assert_close(logits, expected)


@given(length=st.integers(1, 70), operations=st.lists(grow | keep, min_size=2, max_size=10))
@settings(max_examples=25, deadline=None)
def test_a_re_rooted_tree_answers_like_a_session_that_read_the_same_path(
    trees: AnyEngine, length: int, operations: list[Operation]
) -> None:
    with opened(trees) as session:
        mirror = start(trees, session, length, seed=0)
        for operation in operations:
            apply(trees, mirror, operation)
        assert trees.length(session) == len(mirror.text)
        apply(trees, mirror, ("grow", list(range(len(mirror.tokens) + 1)), [True]))


@given(lengths=st.tuples(st.integers(1, 70), st.integers(1, 70)), at=st.tuples(places, places))
@settings(max_examples=10, deadline=None)
def test_growing_trees_that_share_a_pass_do_not_see_each_other(
    trees: AnyEngine, lengths: tuple[int, int], at: tuple[list[int], list[int]]
) -> None:
    with opened(trees) as one, opened(trees) as other:
        mirrors = [start(trees, one, lengths[0], seed=0), start(trees, other, lengths[1], seed=1)]
        for mirror, old in zip(mirrors, at, strict=True):
            apply(trees, mirror, ("grow", old, [True]))
        older = [len(mirror.tokens) for mirror in mirrors]
        batch = [grow_below(mirror, new) for mirror, new in zip(mirrors, reversed(at), strict=True)]
        for mirror, first, found in zip(mirrors, older, forward_rows(trees, batch), strict=True):
            for row, logits in enumerate(found):
                expected = read_alone(trees, mirror.read_as(first + row), [64])[-1]
                assert_close(logits, expected)


def test_a_pruned_branch_never_influences_what_grows_in_its_place(trees: AnyEngine) -> None:
    #  0 ─ 1 ─ 3 ─ 5        the right path is 0, 1; of 3, 4 and 5 below it 3 and 4 survive;
    #      └─ 4             2, 6 and 7 are pruned
    #  2 ─ 6 ─ 7
    layers = [[0, 2], [1, 6], [3, 4, 7], [5]]
    parent = {0: -1, 2: -1, 1: 0, 6: 2, 3: 1, 4: 1, 7: 6, 5: 3}
    token = dict(zip(parent, random_tokens(8, seed=3), strict=True))
    text = random_tokens(30)
    found = []
    for poisoned in (False, True):
        with opened(trees) as session:
            read(trees, session, text, [30])
            entry = {FOLLOWS_PREFIX: FOLLOWS_PREFIX}
            for layer in layers:
                parents = [entry[parent[node]] for node in layer]
                forward_rows(
                    trees, [SequenceTokens(session, [token[node] for node in layer], parents)]
                )
                entry |= {node: len(entry) - 1 + i for i, node in enumerate(layer)}
            trees.commit_kv(session, [entry[0], entry[1]], [entry[3], entry[4]])
            if poisoned:
                for lane in range(SESSIONS):
                    poison(trees, lane, len(text) + 2 + 2 if lane == session else 0)
            grown = SequenceTokens(session, random_tokens(3, seed=4), [0, 1, FOLLOWS_PREFIX])
            found.append(forward_rows(trees, [grown])[0])
    np.testing.assert_array_equal(found[1], found[0])


# --- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("branches", [BRANCHES, 0], ids=["chains", "growing_tree"])
def test_a_reopened_session_holds_nothing_of_the_old_one(
    directory: Path, branches: int, engine_class: type[AnyEngine]
) -> None:
    engine = load(engine_class, directory, branches)
    text, fan = random_tokens(50), random_tokens(BRANCHES, seed=1)

    def everything() -> LogitRows:
        with opened(engine) as session:
            assert engine.length(session) == 0
            prefix = read(engine, session, text, [20])
            rows = forward_rows(engine, [SequenceTokens(session, fan, FAN)])[0]
        return np.concatenate([prefix, rows])

    untouched = everything()
    # Fill every session to the brim, with pending entries on top, and leave.
    sessions = [engine.open_session() for _ in range(SESSIONS)]
    for session in sessions:
        read(engine, session, random_tokens(CONTEXT, seed=2 + session), [64])
        forward_rows(engine, [SequenceTokens(session, random_tokens(BRANCHES), FAN)])
    for session in sessions:
        engine.close_session(session)
    np.testing.assert_array_equal(everything(), untouched)
