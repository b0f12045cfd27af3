"""Rows behind text that was kept have the bits of rows behind text that was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import forward_rows, opened, random_tokens, read
from torch import Tensor

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.architecture import read_architecture
from card.engines.calibration import make_row_invariant
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.paged.cache import PagedCache, PageMemory
from card.engines.options import EngineOptions
from card.engines.prefix_cache import BLOCK
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.captured.kernels.pages import PAGE, PagedKeyValueCache
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine | CapturedEngine

BRANCHES = 2
KEPT_BLOCKS = 5
OPTIONS = EngineOptions(
    context=256,
    sessions=2,
    branches=BRANCHES,
    dtype="float32",
    threads=1,
    kept_tokens=KEPT_BLOCKS * BLOCK,
)


def paged(directory: Path) -> AnyEngine:
    options = replace(OPTIONS, branches=1, paged=True, graph_rows=(1, 4, 64))
    engine = make_row_invariant(OpenVinoEngine.load(directory, options))
    assert engine.options.paged
    return engine


def of_class(engine_class: type[AnyEngine]) -> Callable[[Path], AnyEngine]:
    return lambda directory: make_row_invariant(engine_class.load(directory, OPTIONS))


KINDS = {
    "openvino_paged": paged,
    "openvino_chains": of_class(OpenVinoEngine),
    "torch": of_class(TorchEngine),
    "captured": of_class(CapturedEngine),
}


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AnyEngine:
    directory = tmp_path_factory.mktemp("qwen3")
    tiny_models.save(directory, "qwen3")
    engine = KINDS[request.param](directory)
    assert engine.row_invariant
    return engine


TEXTS = [random_tokens(250, seed=seed) for seed in range(3)]
TEXTS.append(TEXTS[0][: 2 * BLOCK + 7] + TEXTS[1][2 * BLOCK + 7 :])
"""The last one is a fork of the first."""


@pytest.fixture(scope="module")
def expected(engine: AnyEngine) -> list[NDArray[np.float32]]:
    """Logits of every token of each text, read one by one."""
    found = []
    for text in TEXTS:
        with opened(engine) as session:
            found.append(read(engine, session, text, [1]))
    return found


@given(
    turns=st.lists(
        st.tuples(
            st.integers(0, len(TEXTS) - 1), st.integers(1, 240), st.sampled_from([b"", b"one"])
        ),
        min_size=2,
        max_size=6,
    )
)
@settings(max_examples=8, deadline=None)
def test_what_follows_kept_text_has_the_bits_of_what_follows_text_that_was_read(
    engine: AnyEngine, expected: list[NDArray[np.float32]], turns: list[tuple[int, int, bytes]]
) -> None:
    for number, length, salt in turns:
        text = TEXTS[number][:length]
        session = engine.open_session(text[:-1], salt)
        known = engine.length(session)
        assert known < length
        assert known % BLOCK == 0
        found = read(engine, session, text[known:], [40, 3, 1])
        np.testing.assert_array_equal(found, expected[number][known:length])
        engine.remember(session, text, salt)
        engine.close_session(session)
        session = engine.open_session(text, salt)
        assert engine.length(session) == min(length // BLOCK, KEPT_BLOCKS) * BLOCK
        engine.close_session(session)


def test_what_a_session_writes_behind_kept_text_is_its_own(
    engine: AnyEngine, expected: list[NDArray[np.float32]]
) -> None:
    """Two sessions begin behind the same block; both write the places behind it."""
    text, fork = TEXTS[0][: 2 * BLOCK], TEXTS[1]
    with opened(engine) as session:
        read(engine, session, text, [64])
        engine.remember(session, text)
    one, other = engine.open_session(text), engine.open_session(text)
    read(engine, one, fork[: BLOCK + 3], [64])
    engine.remember(one, [*text, *fork[: BLOCK + 3]])
    found = read(engine, other, TEXTS[0][len(text) : len(text) + 9], [4])
    np.testing.assert_array_equal(found, expected[0][len(text) : len(text) + 9])
    for session in (one, other):
        engine.close_session(session)


def test_every_branch_stands_behind_kept_text(
    engine: AnyEngine, expected: list[NDArray[np.float32]]
) -> None:
    if engine.options.branches == 1:
        pytest.skip("passes of single chains")
    text = TEXTS[2][:BLOCK]
    with opened(engine) as session:
        read(engine, session, text, [64])
        engine.remember(session, text)
    session = engine.open_session(text)
    rows = [TEXTS[0][0], *TEXTS[2][BLOCK : BLOCK + 2]]
    (found,) = forward_rows(
        engine, [SequenceTokens(session, rows, [FOLLOWS_PREFIX, FOLLOWS_PREFIX, 1])]
    )
    np.testing.assert_array_equal(found[1:], expected[2][BLOCK : BLOCK + 2])
    engine.close_session(session)


@pytest.mark.parametrize("engine_class", [OpenVinoEngine, TorchEngine, CapturedEngine])
def test_a_growing_tree_stands_behind_kept_text(
    engine_class: type[AnyEngine], tmp_path: Path
) -> None:
    tiny_models.save(tmp_path, "qwen3")
    engine = engine_class.load(tmp_path, replace(OPTIONS, branches=0, pending=64))
    text, children = TEXTS[0][: BLOCK + 20], SequenceTokens(0, [3, 4, 5], [FOLLOWS_PREFIX, 0, 0])
    found = []
    for known in (0, BLOCK):
        session = engine.open_session(text[:-1])
        assert engine.length(session) == known
        read(engine, session, text[known:], [64])
        found += forward_rows(engine, [replace(children, session=session)])
        engine.commit_kv(session, [])
        engine.remember(session, text)
        engine.close_session(session)
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_a_text_takes_no_pages_for_being_kept(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "qwen3")
    memory = PageMemory(read_architecture(tmp_path), 12, ov.Type.f32)
    kv, kept = PagedCache(memory, 3, 4 * BLOCK), 2
    kv.make_writable(0, np.arange(3 * BLOCK))
    written = kv.table[0, :2].tolist()
    kv.copy(0, 0, 2 * BLOCK, range(kept, kept + 1), BLOCK)
    assert kv.free_pages == 9
    kv.release(0)
    assert kv.free_pages == 10
    kv.copy(kept, BLOCK, 3 * BLOCK, range(2), 0)
    assert kv.table[:2, :2].tolist() == [written, written]
    kv.make_writable(1, np.array([BLOCK - 1, BLOCK]))  # of another text that begins in this lane
    assert kv.free_pages == 8
    assert not set(written) & set(kv.table[1, :2].tolist())
    for lane in range(3):
        kv.release(lane)
    assert kv.free_pages == 12


def test_places_are_copied_to_any_part_of_a_page(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "qwen3")
    kv = PagedKeyValueCache(
        read_architecture(tmp_path), 3, 2 * PAGE, torch.float32, torch.device("cpu")
    )
    generator = torch.Generator().manual_seed(0)
    for buffers in (kv.keys, kv.values):
        buffers.copy_(torch.rand(buffers.shape, generator=generator))

    def entries(lane: int) -> Tensor:
        """[2 * places, layers, kv_heads, head_size] of a lane."""
        pages, places = np.divmod(kv.slots(np.full(2 * PAGE, lane), np.arange(2 * PAGE)), PAGE)
        return torch.cat([buffers[:, pages, :, places] for buffers in (kv.keys, kv.values)])

    before = [entries(lane) for lane in range(3)]
    kv.copy(0, BLOCK, 3 * BLOCK, range(1, 3), 0)
    for lane in range(3):
        expected = before[lane].clone()
        for half in (0, 2 * PAGE) if lane else ():
            expected[half : half + 2 * BLOCK] = before[0][half + BLOCK : half + 3 * BLOCK]
        assert torch.equal(entries(lane), expected)
