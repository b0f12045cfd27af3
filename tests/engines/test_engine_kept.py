"""Rows behind text that was kept have the bits of rows behind text that was read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import tiny_models
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from tiny_models import forward_rows, opened, random_tokens, read
from torch import Tensor

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.architecture import read_architecture
from card.engines.calibration import make_row_invariant
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.pages import PagedCache, PageMemory, pages_of
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
    sessions=3,
    branches=BRANCHES,
    dtype="float32",
    threads=1,
    graph_rows=(1, 4, 64),
    kept_tokens=KEPT_BLOCKS * BLOCK,
)


@pytest.fixture(scope="module", params=[OpenVinoEngine, TorchEngine, CapturedEngine])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AnyEngine:
    directory = tmp_path_factory.mktemp("qwen3")
    tiny_models.save(directory, "qwen3")
    engine: AnyEngine = make_row_invariant(request.param.load(directory, OPTIONS))
    assert engine.row_invariant
    return engine


TEXTS = [random_tokens(200, seed=seed) for seed in range(3)]
TEXTS += [TEXTS[0][:at] + TEXTS[1][at:] for at in (BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 7)]
"""The last ones are forks of the first."""


@pytest.fixture(scope="module")
def expected(engine: AnyEngine) -> list[NDArray[np.float32]]:
    """Logits of every token of each text, read one by one."""
    found = []
    for text in TEXTS:
        with opened(engine) as session:
            found.append(read(engine, session, text, [1]))
    return found


numbers, choices = st.integers(0, len(TEXTS) - 1), st.integers(0, OPTIONS.sessions - 1)
lengths, salts = st.integers(1, len(TEXTS[0])), st.sampled_from([b"", b"one"])
counts = st.sampled_from([0, 1, 3, BLOCK - 1, BLOCK])
"""Rows of a pass; two of them have room in one."""


class SharingSessions(RuleBasedStateMachine):
    """Sessions that come and go in any order, behind texts that part near the borders of blocks.

    Each has the bits of its text in `expected`, and begins behind what was kept with its salt.
    """

    def __init__(self, engine: AnyEngine, expected: list[NDArray[np.float32]]) -> None:
        super().__init__()
        self._engine = engine.reconfigured(engine.options)
        self._engine.row_invariant = True
        self._expected = expected
        self._sessions: dict[int, tuple[int, bytes]] = {}
        self._kept: set[tuple[bytes, tuple[int, ...]]] = set()

    @precondition(lambda self: len(self._sessions) < OPTIONS.sessions)
    @rule(number=numbers, length=lengths, salt=salts)
    def begin(self, number: int, length: int, salt: bytes) -> None:
        text = TEXTS[number][: length - 1]
        session = self._engine.open_session(text, salt)
        known = self._engine.length(session)
        assert known == 0 or (salt, tuple(text[:known])) in self._kept
        self._sessions[session] = number, salt

    @precondition(lambda self: self._sessions)
    @rule(
        passes=st.lists(st.tuples(choices, counts, counts), min_size=1, max_size=OPTIONS.sessions)
    )
    def read(self, passes: list[tuple[int, int, int]]) -> None:
        """One pass: of each session some rows of its text, and some behind them that are wrong."""
        batch: dict[int, tuple[SequenceTokens, int]] = {}
        for choice, right, wrong in passes:
            session = self._choose(choice)
            text = TEXTS[self._sessions[session][0]][self._engine.length(session) :]
            tokens = text[:right] + [token ^ 1 for token in text[right : right + wrong]]
            if tokens:
                batch[session] = SequenceTokens(session, tokens), min(right, len(text))
        turns = list(batch.values())
        logits = forward_rows(self._engine, [rows for rows, _ in turns]) if turns else []
        for (rows, right), found in zip(turns, logits, strict=True):
            number, at = self._sessions[rows.session][0], self._engine.length(rows.session)
            np.testing.assert_array_equal(found[:right], self._expected[number][at : at + right])
            self._engine.commit_kv(rows.session, range(right))

    @precondition(lambda self: self._sessions)
    @rule(choice=choices)
    def keep(self, choice: int) -> None:
        session = self._choose(choice)
        number, salt = self._sessions[session]
        self._engine.remember(session, TEXTS[number], salt)
        known = TEXTS[number][: self._engine.length(session)]
        found = self._engine._kept.find(known, salt)
        assert len(found) == min(len(known) // BLOCK, KEPT_BLOCKS)
        for end in range(BLOCK, len(known) + 1, BLOCK):
            self._kept.add((salt, tuple(known[:end])))

    @precondition(lambda self: self._sessions)
    @rule(choice=choices)
    def end(self, choice: int) -> None:
        session = self._choose(choice)
        del self._sessions[session]
        self._engine.close_session(session)

    def _choose(self, choice: int) -> int:
        return sorted(self._sessions)[choice % len(self._sessions)]

    def teardown(self) -> None:
        """No page is lost."""
        for session in self._sessions:
            self._engine.close_session(session)
        kv = self._engine._kv
        if isinstance(kv, PagedCache):
            assert (kv.table[: OPTIONS.sessions] == -1).all()
            taken = pages_of(self._engine.options) - kv.free_pages
            assert taken == len(np.unique(kv.table)) - 1


def test_sessions_that_share_kept_text_have_the_bits_of_text_that_was_read(
    engine: AnyEngine, expected: list[NDArray[np.float32]]
) -> None:
    class Sessions(SharingSessions):
        def __init__(self) -> None:
            super().__init__(engine, expected)

    run_state_machine_as_test(
        Sessions,
        settings=settings(max_examples=15, stateful_step_count=30, deadline=None),
    )


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
    options = replace(OPTIONS, sessions=2, kept_tokens=4 * BLOCK)
    memory = PageMemory(read_architecture(tmp_path), pages_of(options), ov.Type.f32)
    kv, kept = PagedCache(memory, options), 2
    pages = kv.free_pages
    kv.table[0, :3] = written = [kv.take() for _ in range(3)]
    kv.copy(0, 0, 2 * BLOCK, range(kept, kept + 1), BLOCK)
    assert kv.free_pages == pages - 3
    kv.release(0)
    assert kv.free_pages == pages - 2
    kv.copy(kept, BLOCK, 3 * BLOCK, range(2), 0)
    assert kv.table[:2, :2].tolist() == [written[:2], written[:2]]
    for lane in range(3):
        kv.release(lane)
    assert kv.free_pages == pages


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
