"""What tests of engines share."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
from transformers import LlamaConfig


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
