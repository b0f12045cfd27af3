"""Passes of fixed shape over static buffers: how many are kept, and when they are captured.

On a processor a replay is a call; everything else is what a CUDA device runs.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny_models
import torch
from echo_kernels import echo_engine
from tiny_models import random_tokens, read_alone

from card.engines.options import EngineOptions
from card.engines.torch.captured.static import Replayed

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


class Cuda:
    """Stands in for `torch.cuda` while a graph is captured, and writes down what is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def CUDAGraph(self) -> Cuda:
        return self

    @contextmanager
    def graph(self, graph: object, pool: object) -> Iterator[None]:
        self.calls.append(f"capture into {pool}")
        yield
        self.calls.append("captured")

    def replay(self) -> None:
        self.calls.append("replay")


def test_computation_is_captured_when_it_runs_again_and_then_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs once, as many passes of a self-check do, is not worth a capture."""
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    replayed = Replayed(lambda: cuda.calls.append("compute"), torch.device("cuda:0"), "pool")
    assert cuda.calls == []
    replayed.run()
    assert cuda.calls == ["compute"]
    replayed.run()
    assert cuda.calls[1:] == ["capture into pool", "compute", "captured", "replay"]
    cuda.calls.clear()
    replayed.run()
    replayed.run()
    assert cuda.calls == ["replay", "replay"]


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
