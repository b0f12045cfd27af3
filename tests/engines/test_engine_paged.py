"""Paged attention: what its pages hold, and how passes share it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import tiny_models
from tiny_models import SLIDING_WINDOW, forward_rows, opened, random_tokens, read
from watched_passes import recorded_passes

from card.engines import EngineError, SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions

pytestmark = pytest.mark.usefixtures("one_thread")

SESSIONS = 3
OPTIONS = EngineOptions(
    context=SLIDING_WINDOW,
    sessions=SESSIONS,
    dtype="float32",
    threads=1,
    graph_rows=(1, 4, 16, 64),
)
TEXT = random_tokens(100)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "qwen3")
    return tmp_path


def test_what_lies_behind_a_row_is_not_looked_at(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    expected = tiny_models.read_alone(engine, TEXT, [1])
    for buffers in engine.model.pages.buffers.values():
        buffers[...] = 1e4
    np.testing.assert_array_equal(tiny_models.read_alone(engine, TEXT, [16, 1, 4, 40]), expected)


# --- memory and passes ----------------------------------------------------------------------------


def test_a_tree_that_no_decoder_takes_with_its_copies_is_computed_row_by_row(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a page that two branches fill each has its own, and the second one lacks the rows that
    they share."""
    engine = OpenVinoEngine.load(checkpoint, replace(OPTIONS, paths=2))
    shared, branch, other = TEXT[10:50], TEXT[50:60], [token ^ 1 for token in TEXT[50:60]]
    parents = [*range(-1, 49), 39, *range(50, 59)]
    passes = recorded_passes(monkeypatch)
    with opened(engine) as session:
        read(engine, session, TEXT[:10], [10])
        passes.clear()
        rows = SequenceTokens(session, [*shared, *branch, *other], parents)
        (found,) = forward_rows(engine, [rows])
        engine.commit_kv(session, [*range(40), *range(50, 60)])
        (behind,) = forward_rows(engine, [SequenceTokens(session, TEXT[60:64])])
    assert passes[:60] == [[1]] * 60
    for at, path in ((50, [*shared, *branch]), (60, [*shared, *other])):
        expected = tiny_models.read_alone(engine, [*TEXT[:10], *path, *TEXT[60:64]], [1])
        np.testing.assert_array_equal(found[at - 10 : at], expected[50:60])
    np.testing.assert_array_equal(found[:40], expected[10:50])
    np.testing.assert_array_equal(behind, expected[60:])


# --- how models are loaded ------------------------------------------------------------------------


def test_a_cache_that_the_system_has_no_room_for_is_refused_by_its_settings(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> NoReturn:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr("card.engines.openvino.memory.mmap.mmap", no_room)
    with pytest.raises(EngineError, match=r"cache\.slots"):
        OpenVinoEngine.load(checkpoint, OPTIONS)
