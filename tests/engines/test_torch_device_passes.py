"""Passes of fixed shape over static buffers: how many are kept, and when they are captured.

On a processor a replay is a call; everything else is what a CUDA device runs.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import tiny_models
from echo_kernels import echo_engine
from tiny_models import random_tokens, read_alone

from card.engines.options import EngineOptions

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = EngineOptions(200, 2, dtype="bfloat16")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save(path, "qwen3")
    return path


def test_oldest_shape_makes_room_when_as_many_as_allowed_are_kept(directory: Path) -> None:
    text, chunks = random_tokens(60), [1, 17, 40, 2]
    engine = echo_engine(directory, OPTIONS)
    expected = read_alone(engine, text, chunks)
    assert len(engine._passes) > 2
    engine = echo_engine(directory, OPTIONS, most_captured=2)
    assert read_alone(engine, text, chunks).tobytes() == expected.tobytes()
    assert len(engine._passes) == 2


def test_memory_is_freed_at_once_when_an_engine_is_dropped(directory: Path) -> None:
    engine = echo_engine(directory, OPTIONS)
    read_alone(engine, random_tokens(10), [4])
    keys = weakref.ref(engine._fixed.kv.keys)
    gc.disable()
    try:
        del engine
        assert keys() is None
    finally:
        gc.enable()
