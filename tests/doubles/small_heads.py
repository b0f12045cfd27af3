"""Heads on a target's hidden states: the fixtures of `tests/heads`, and random ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from card.engines.architecture import architecture_of, read_architecture
from card.engines.checkpoints import DenseMatrix
from card.engines.options import EngineOptions
from card.settings import REPOSITORY_ROOT
from card.speculation.drafters.heads.eagle3 import Eagle3
from card.speculation.drafters.heads.engine import HeadEngine
from card.speculation.drafters.heads.formats import HeadConfig, head_of

HEADS = REPOSITORY_ROOT / "tests/heads"
OPTIONS = EngineOptions(context=200, sessions=4, paths=0, pending=64, threads=1)
TAPPED = 8
"""Numbers of a token's states that a random head reads."""
_SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}


def save_target(directory: Path) -> Path:
    """The configuration of a target of the fixtures; it has no weights."""
    shape = _SHAPE | {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 6}
    (directory / "config.json").write_text(json.dumps(shape))
    return directory


def random_head(vocabulary: int, seed: int = 0, mask_id: int | None = None) -> HeadEngine:
    """A head that ranks every second id."""
    torch.manual_seed(seed)
    config = HeadConfig("eagle3", _SHAPE | {"vocab_size": vocabulary}, (1, 2), mask_id=mask_id)
    a = architecture_of(config.decoder, Path("config.json"))
    ranked = np.arange(0, vocabulary, 2)
    head = Eagle3(config, a, taps=2, tapped=TAPPED, ids=len(ranked), biases=(False, False))
    embedding = np.random.default_rng(seed).standard_normal((vocabulary, a.hidden))
    return HeadEngine(head.eval(), DenseMatrix(embedding.astype("f4")), 1.0, ranked, OPTIONS)


def save_random_head(directory: Path, target: Path, ids: int = 512) -> None:
    """Save a head for this target in the format of `speculators`; it agrees with nothing."""
    torch.manual_seed(0)
    a = read_architecture(target)
    shape = {
        "model_type": "llama",
        "vocab_size": a.vocabulary,
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_size,
        "max_position_embeddings": a.context,
        "rms_norm_eps": a.norm_epsilon,
    }
    said = {"speculators_model_type": "eagle3", "transformer_layer_config": shape}
    (directory / "config.json").write_text(json.dumps(said))
    config = head_of(said)
    assert config is not None
    taps = len(config.taps(a.layers))
    layer = architecture_of(config.decoder, directory / "config.json")
    head = Eagle3(config, layer, taps=taps, tapped=taps * a.hidden, ids=ids, biases=(False, False))
    offsets = torch.arange(ids) * (a.vocabulary // ids - 1)
    save_file(head.state_dict() | {"d2t": offsets}, directory / "model.safetensors")
