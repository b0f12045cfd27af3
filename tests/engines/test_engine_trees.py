"""Trees that grow, are re-rooted and pruned answer as sessions that read the same paths afresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import VOCABULARY, forward_rows, opened, random_tokens, read, read_alone

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.interface import BLOCK
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine

CLOSE = 1e-5
SESSIONS = 2
OPTIONS = EngineOptions(
    context=256,
    sessions=SESSIONS + 1,  # one to compare with
    paths=0,
    pending=256,
    dtype="float32",
    graph_rows=(1, 6, 64),
    kept_tokens=4 * BLOCK,
)
TEXTS = [random_tokens(70, seed) for seed in range(SESSIONS)]


@pytest.fixture(scope="module")
def engine(engine_class: type[AnyEngine], tmp_path_factory: pytest.TempPathFactory) -> AnyEngine:
    directory: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save(directory, "qwen3")
    return engine_class.load(directory, OPTIONS)


@dataclass
class Mirror:
    """What a session should hold: its prefix and pending entries."""

    session: int
    text: list[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

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

    def grow(self, at: Sequence[int]) -> SequenceTokens:
        """Rows for new entries below chosen ones, which the same pass may append."""
        older = len(self.tokens)
        parents = [number % (older + row + 1) - 1 for row, number in enumerate(at)]
        tokens = [(7 * number + older) % VOCABULARY for number in at]
        self.tokens += tokens
        self.parents += parents
        return SequenceTokens(self.session, tokens, parents)

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


def assert_read_alike(engine: AnyEngine, mirror: Mirror, found: NDArray[np.float32]) -> None:
    """The newest entries answer as a session that read their paths."""
    first = len(mirror.tokens) - len(found)
    for row, logits in enumerate(found):
        expected = read_alone(engine, mirror.read_as(first + row), [64])[-1]
        assert np.abs(logits - expected).max() < CLOSE * np.abs(expected).max()


Step = tuple[list[list[int]], list[tuple[int, list[bool]]]]

lengths = st.lists(st.integers(1, 70), min_size=SESSIONS, max_size=SESSIONS)
places = st.lists(st.integers(0, 999), max_size=6)
"""Of one session's new rows; none, if it takes no part in a pass."""
grown = st.lists(places, min_size=SESSIONS, max_size=SESSIONS)
commits = st.lists(
    st.tuples(st.integers(0, 999), st.lists(st.booleans(), min_size=1, max_size=7)),
    min_size=SESSIONS,
    max_size=SESSIONS,
)


@given(lengths=lengths, steps=st.lists(st.tuples(grown, commits), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_trees_answer_like_sessions_that_read_the_same_paths(
    engine: AnyEngine, lengths: list[int], steps: list[Step]
) -> None:
    """Sessions share passes, and a text may begin behind one that was kept."""
    engine = engine.reconfigured(OPTIONS)
    with opened(engine) as session:  # its lane is used
        read(engine, session, TEXTS[0], [64])
        engine.remember(session, TEXTS[0])
    mirrors = []
    for text, length in zip(TEXTS, lengths, strict=True):
        mirror = Mirror(engine.open_session(text[: length - 1]), text[:length])
        known = engine.length(mirror.session)
        assert known == (0 if text is not TEXTS[0] else (length - 1) // BLOCK * BLOCK)
        read(engine, mirror.session, mirror.text[known:], [64])
        mirrors.append(mirror)
    for at, kept in steps:
        growing = [(mirror, new) for mirror, new in zip(mirrors, at, strict=True) if new]
        batch = [mirror.grow(new) for mirror, new in growing]
        answers = forward_rows(engine, batch) if batch else []
        for (mirror, _), found in zip(growing, answers, strict=True):
            assert_read_alike(engine, mirror, found)
        for mirror, (entry, wanted) in zip(mirrors, kept, strict=True):
            chosen = entry % (len(mirror.tokens) + 1) - 1
            engine.commit_kv(mirror.session, *mirror.commit_kv(chosen, wanted))
            assert engine.length(mirror.session) == len(mirror.text)
    for mirror in mirrors:  # whatever survived
        (found,) = forward_rows(engine, [mirror.grow(range(len(mirror.tokens) + 1))])
        assert_read_alike(engine, mirror, found)
