"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from card.engines import calibration


@pytest.fixture(scope="session", autouse=True)
def _quick_to_measure() -> Iterator[None]:
    """What a pass costs, of each engine loaded here, is measured once and not four times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_COST_ROUNDS", 1)
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch computes on one thread, and afterwards on as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
