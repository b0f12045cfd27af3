"""What all tests share: properties are about results, not about a busy machine's speed."""

from __future__ import annotations

import pytest
from hypothesis import settings

from card.engines.openvino.engine import OpenVinoEngine
from card.engines.torch.engine import TorchEngine

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

CheckpointEngine = type[TorchEngine] | type[OpenVinoEngine]


@pytest.fixture(scope="module", params=[TorchEngine, OpenVinoEngine], ids=["torch", "openvino"])
def engine_class(request: pytest.FixtureRequest) -> CheckpointEngine:
    """What is promised of an engine holds for both that run checkpoints themselves."""
    found: CheckpointEngine = request.param
    return found
