"""What all tests share: properties are about results, not about a busy machine's speed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports Triton, whose own functions are made for one or the other at import.
os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


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
