"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_models
import torch
from transformers import LlamaConfig

from card.engines.openvino.engine import OpenVinoEngine
from card.engines.torch.engine import TorchEngine

CheckpointEngine = type[TorchEngine] | type[OpenVinoEngine]


@pytest.fixture(scope="session")
def larger_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27M random weights in bfloat16: the work and the memory of a pass are mostly theirs."""
    directory = tmp_path_factory.mktemp("larger")
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4352,
        tie_word_embeddings=True,
    )
    tiny_models.build(config).bfloat16().save_pretrained(directory)
    return directory


@pytest.fixture(
    scope="module",
    params=[TorchEngine, OpenVinoEngine],
    ids=["torch", "openvino"],
)
def engine_class(request: pytest.FixtureRequest) -> CheckpointEngine:
    """What is promised of an engine holds for both that run checkpoints on a processor."""
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
