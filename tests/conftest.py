"""What all tests share: properties are about results, not about a busy machine's speed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Before anything imports Triton, whose own functions are made for one or the other at import.
os.environ.setdefault("TRITON_INTERPRET", "1")

from card.engines.openvino.engine import OpenVinoEngine
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.engine import TorchEngine

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

CheckpointEngine = type[TorchEngine] | type[OpenVinoEngine] | type[CapturedEngine]


@pytest.fixture(autouse=True)
def log_of_its_own() -> Iterator[None]:
    """A log that a test opens is closed after it: the next test would write to a stream that is
    gone, and `caplog` would hear each event twice."""
    yield
    root = logging.getLogger("card")
    root.handlers.clear()
    root.setLevel(logging.NOTSET)
    root.propagate = True


@pytest.fixture(scope="session")
def calibration_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where services of all tests keep what their models find out at load; that takes most of a
    start, and those of equal settings share it."""
    everything = tmp_path_factory.getbasetemp()
    shared = everything.parent if "PYTEST_XDIST_WORKER" in os.environ else everything
    return shared / "calibration"


@pytest.fixture(
    scope="module",
    params=[TorchEngine, OpenVinoEngine, CapturedEngine],
    ids=["torch", "openvino", "captured"],
)
def engine_class(request: pytest.FixtureRequest) -> CheckpointEngine:
    """What is promised of an engine holds for all that run checkpoints themselves. The captured one
    computes here what it would on a device, where a replay is no call."""
    found: CheckpointEngine = request.param
    return found


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch computes on one thread, and afterwards on as many as before: small matrices only wait
    for a second one, for long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
