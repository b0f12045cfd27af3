"""A row's logits are the same bits however its pass is put together.

Everything is compared with the same text read one row at a time, which is what plain
autoregressive decoding does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from real_pair import TARGET
from this_processor import skip_unless_computed_in
from tiny_models import forward_rows, opened, random_tokens, read, read_alone

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

BRANCHES = 4
SESSIONS = 3
LONGEST = 100
"""Tokens of a text; the keys of its last rows fill more than one block of 64 positions."""

Bits = torch.Tensor
AnyEngine = TorchEngine | OpenVinoEngine
Dtype = Literal["auto", "bfloat16", "float32", "int8"]


def bits(logits: NDArray[np.float32]) -> Bits:
    return torch.from_numpy(logits)


@dataclass(repr=False)
class Subject:
    """An engine as loading makes it, and what it says when it reads one row at a time."""

    engine: AnyEngine
    text: list[int]
    _paths: dict[tuple[int, ...], Bits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = bits(read_alone(self.engine, self.text, [1]))
        """[tokens, vocabulary]"""

    def behind(self, prefix: int, path: tuple[int, ...]) -> Bits:
        """Logits of `path` read one row at a time behind the first `prefix` tokens of the text."""
        key = (prefix, *path)
        if key not in self._paths:
            with opened(self.engine) as session:
                read(self.engine, session, self.text[:prefix], [64])
                self._paths[key] = bits(read(self.engine, session, path, [1]))
        return self._paths[key]


def options(dtype: Dtype) -> EngineOptions:
    return EngineOptions(
        context=336,
        sessions=SESSIONS,
        branches=BRANCHES,
        dtype=dtype,
        threads=1,
        threads_alone=2,
        graph_rows=(1, 4, 64),
        compressed=True,
    )


@pytest.fixture(scope="module")
def one_head_per_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose every query head has keys of its own."""
    directory = tmp_path_factory.mktemp("llama2")
    tiny_models.save(directory, "llama2")
    return directory


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose matrices may stay compressed in float32."""
    directory = tmp_path_factory.mktemp("qwen2")
    tiny_models.build(tiny_models.FAMILIES["qwen2"]).bfloat16().save_pretrained(directory)
    return directory


@pytest.fixture(
    scope="module",
    params=[
        ("openvino", "trained", "auto"),
        ("openvino", "trained", "int8"),
        ("openvino", "tiny", "bfloat16"),
        ("openvino", "tiny", "float32"),
        ("openvino", "tiny_in_bfloat16", "float32"),
        ("torch", "trained", "bfloat16"),
        ("torch", "tiny", "float32"),
    ],
    ids="-".join,
)
def subject(request: pytest.FixtureRequest, one_head_per_group: Path, in_bfloat16: Path) -> Subject:
    kind, model, dtype = request.param
    directory = {"trained": TARGET, "tiny": one_head_per_group, "tiny_in_bfloat16": in_bfloat16}[
        model
    ]
    engine_class = OpenVinoEngine if kind == "openvino" else TorchEngine
    skip_unless_computed_in(dtype)
    engine = make_row_invariant(engine_class.load(directory, options(dtype)))
    assert engine.row_invariant
    return Subject(engine, random_tokens(LONGEST, vocabulary=engine.vocabulary))


few = settings(max_examples=6, deadline=None)
fewer = settings(max_examples=2, deadline=None)

chunkings = st.lists(st.integers(4, 100), min_size=1, max_size=5)


@dataclass(frozen=True)
class Ask:
    """What one session puts into a pass: a tree behind a prefix of the text."""

    prefix: int
    parents: tuple[int, ...]
    """[rows]; a first child goes on with the text, later ones turn elsewhere."""

    def path(self, row: int) -> list[int]:
        path = [row]
        while self.parents[path[0]] != FOLLOWS_PREFIX:
            path.insert(0, self.parents[path[0]])
        return path

    def tokens(self, text: list[int], vocabulary: int) -> list[int]:
        found = []
        for row, parent in enumerate(self.parents):
            elder = self.parents[:row].count(parent)
            depth = len(self.path(row)) - 1
            found.append((text[(self.prefix + depth) % len(text)] + elder) % vocabulary)
        return found

    @property
    def leaves(self) -> list[int]:
        return [row for row in range(len(self.parents)) if row not in self.parents]


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, ...]:
    """Parents of up to 20 rows with at most `BRANCHES` leaves."""
    parents: list[int] = []
    leaves = 0
    for row in range(draw(st.integers(1, 20))):
        choices = range(FOLLOWS_PREFIX, row) if leaves < BRANCHES else _leaves(parents)
        # The newest node comes first: shrinking leads to chains.
        parent = draw(st.sampled_from(sorted(choices, reverse=True)))
        leaves += parent == FOLLOWS_PREFIX or parent in parents
        parents.append(parent)
    return tuple(parents)


def _leaves(parents: list[int]) -> list[int]:
    return [row for row in range(len(parents)) if row not in parents]


asks = st.builds(Ask, st.sampled_from([1, 20, 63, 64, 90]), trees())


@given(chunks=chunkings)
@few
def test_reading_in_chunks_gives_the_bits_of_single_rows(
    subject: Subject, chunks: list[int]
) -> None:
    assert torch.equal(bits(read_alone(subject.engine, subject.text, chunks)), subject.plain)


def test_streams_of_any_age_share_passes_with_the_bits_of_single_rows(subject: Subject) -> None:
    engine, text = subject.engine, subject.text
    long = random_tokens(300, vocabulary=engine.vocabulary)
    with opened(engine) as session:
        read(engine, session, long[:-40], [64])
        far_alone = bits(read(engine, session, long[-40:], [1]))
    with opened(engine) as far, opened(engine) as near:
        read(engine, far, long[:-40], [64])
        for at in range(0, 40, 4):
            batch = [
                SequenceTokens(far, long[260 + at : 264 + at]),
                SequenceTokens(near, text[at : at + 4]),
            ]
            far_rows, near_rows = (bits(rows) for rows in forward_rows(engine, batch))
            assert torch.equal(far_rows, far_alone[at : at + 4])
            assert torch.equal(near_rows, subject.plain[at : at + 4])
            for rows in batch:
                engine.commit_kv(rows.session, range(4))


@given(asked=st.lists(asks, min_size=1, max_size=SESSIONS - 1), chunks=chunkings)
@few
def test_every_row_of_trees_that_share_a_pass_has_the_bits_of_single_rows(
    subject: Subject, asked: list[Ask], chunks: list[int]
) -> None:
    engine, text = subject.engine, subject.text
    batch = []
    with ExitStack() as sessions:
        for ask in asked:
            session = sessions.enter_context(opened(engine))
            read(engine, session, text[: ask.prefix], chunks)
            batch.append(SequenceTokens(session, ask.tokens(text, engine.vocabulary), ask.parents))
        found = [bits(rows) for rows in forward_rows(engine, batch)]
    for ask, rows, logits in zip(asked, batch, found, strict=True):
        for leaf in ask.leaves:
            path = ask.path(leaf)
            expected = subject.behind(ask.prefix, tuple(rows.tokens[row] for row in path))
            assert torch.equal(logits[path], expected)


@given(chunks=st.lists(st.integers(20, 100), min_size=1, max_size=4), ask=asks)
@fewer
def test_two_threads_give_the_bits_of_one(subject: Subject, chunks: list[int], ask: Ask) -> None:
    text = subject.text
    tree = ask.tokens(text, subject.engine.vocabulary)

    def everything(*, alone: bool) -> Bits:
        asked = SequenceTokens(session, tree, ask.parents)
        prefix = read(engine, session, text[: ask.prefix], chunks, alone=alone)
        return bits(np.concatenate([prefix, *forward_rows(engine, [asked], alone=alone)]))

    engine = subject.engine
    assert engine.options.threads_alone == 2
    with opened(engine) as session:
        on_one = everything(alone=False)
    with opened(engine) as session:
        assert torch.equal(everything(alone=True), on_one)


@given(kept=st.lists(st.tuples(trees(), st.integers(0, 99)), min_size=1, max_size=6))
@few
def test_decoding_through_winning_branches_gives_the_bits_of_single_rows(
    subject: Subject, kept: list[tuple[tuple[int, ...], int]]
) -> None:
    """Whichever chain held the right rows, the next pass goes on from it in every lane."""
    engine, text = subject.engine, subject.text
    at = 0
    with opened(engine) as session:
        for parents, choice in kept:
            ask = Ask(at, parents)
            path = ask.path(ask.leaves[choice % len(ask.leaves)])
            if at + len(path) > len(text):
                break
            tokens = ask.tokens(text, engine.vocabulary)
            for depth, row in enumerate(path):
                tokens[row] = text[at + depth]
            found = bits(forward_rows(engine, [SequenceTokens(session, tokens, parents)])[0])
            assert torch.equal(found[path], subject.plain[at : at + len(path)])
            engine.commit_kv(session, path)
            at += len(path)
        assert engine.length(session) == at


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_text_of_a_thousand_tokens_keeps_its_bits(
    tmp_path: Path, dtype: Literal["bfloat16", "float32"], engine_class: type[AnyEngine]
) -> None:
    skip_unless_computed_in(dtype)
    config = tiny_models.FAMILIES["llama3"].__class__(
        **tiny_models.FAMILIES["llama3"].to_dict() | {"max_position_embeddings": 1024}
    )
    tiny_models.build(config).save_pretrained(tmp_path)
    engine = make_row_invariant(
        engine_class.load(tmp_path, EngineOptions(context=1024, sessions=2, dtype=dtype))
    )
    text = random_tokens(1000)
    expected = read_alone(engine, text, [64])
    for chunks in ([256], [7, 100, 33], [255, 1, 63, 65]):
        assert torch.equal(bits(read_alone(engine, text, chunks)), bits(expected))
    with opened(engine) as session:
        read(engine, session, text[:980], [128])
        assert torch.equal(bits(read(engine, session, text[980:], [1])), bits(expected[980:]))
