"""Heads on a target's hidden states: the fixtures of `tests/heads`, and random ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from card.engines.architecture import architecture_of, read_architecture
from card.engines.checkpoints import DenseMatrix
from card.engines.options import EngineOptions
from card.settings import REPOSITORY_ROOT
from card.speculation.drafters.heads.base import StatesEngine
from card.speculation.drafters.heads.blocks import HeadShape
from card.speculation.drafters.heads.formats import DSPARK, EAGLE3, HeadConfig, head_of
from card.speculation.drafters.heads.loading import HEADS as HEADS_BY_KIND
from training.heads.files import config_of, write_head

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


def random_head(
    vocabulary: int, seed: int = 0, mask_id: int | None = None, kind: str = EAGLE3
) -> StatesEngine:
    """A head that ranks every second id; with a mask, or of a kind that makes blocks, it makes
    blocks of four."""
    torch.manual_seed(seed)
    config = HeadConfig(
        kind,
        _SHAPE | {"vocab_size": vocabulary},
        (1, 2),
        mask_id=mask_id,
        block=4,
        from_anchor=kind == DSPARK,
        markov_rank=4 if kind == DSPARK else 0,
    )
    a = architecture_of(config.decoder, Path("config.json"))
    ranked = np.arange(0, vocabulary, 2)
    module, engine = HEADS_BY_KIND[kind]
    head = module(config, a, HeadShape(2, TAPPED, len(ranked)))
    embedding = np.random.default_rng(seed).standard_normal((vocabulary, a.hidden))
    made: StatesEngine = engine(
        head.eval(), DenseMatrix(embedding.astype("f4")), 1.0, ranked, OPTIONS
    )
    return made


def save_random_head(
    directory: Path, target: Path, ids: int = 512, kind: Literal["eagle3", "dspark"] = "eagle3"
) -> None:
    """Save a head for this target in the format of `speculators`; it agrees with nothing."""
    torch.manual_seed(0)
    a = read_architecture(target)
    taps = HeadConfig(EAGLE3, {}, None).taps(a.layers)
    said = config_of(EAGLE3, a, taps, ids, steps=3)
    if kind == DSPARK:
        said["transformer_layer_config"]["model_type"] = "qwen3"
        said |= {
            "speculators_model_type": DSPARK,
            "aux_hidden_state_layer_ids": [*taps],
            "block_size": 4,
            "mask_token_id": a.vocabulary - 1,
            "markov_rank": 8,
        }
    config = head_of(said)
    assert config is not None
    layer = architecture_of(config.decoder, directory / "config.json")
    module, _ = HEADS_BY_KIND[kind]
    tapped = len(taps) * a.hidden
    head = module(config, layer, HeadShape(len(taps), tapped, ids))
    write_head(head, said, np.arange(ids) * (a.vocabulary // ids), directory)
