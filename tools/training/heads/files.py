"""A head in the format of `speculators`: made new, read again, written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from card.engines.architecture import Architecture, architecture_of
from card.speculation.drafters.heads.blocks import HeadShape
from card.speculation.drafters.heads.formats import EAGLE3, PEAGLE, head_of
from card.speculation.drafters.heads.loading import HEADS
from training.errors import TrainingError
from training.heads.states import TappedTarget

_WEIGHTS = "model.safetensors"
_CLASSES = {EAGLE3: "Eagle3Speculator", PEAGLE: "PEagleSpeculator"}
NO_LABEL = -100
"""The label that `torch.nn.functional.cross_entropy` leaves out."""


def config_of(
    kind: str, a: Architecture, taps: tuple[int, ...], ids: int, steps: int
) -> dict[str, Any]:
    """The configuration of a head of `speculators`' kind `eagle3` or `peagle` with a layer of the
    target's shape."""
    if a.rope.kind not in ("default", "linear", "llama3"):
        raise TrainingError(f"a head with a rotary embedding of the kind {a.rope.kind} is not made")
    return {
        "architectures": [_CLASSES[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": ids,
        "eagle_aux_hidden_state_layer_ids": list(taps),
        "norm_before_residual": True,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "vocab_size": a.vocabulary,
            "hidden_size": a.hidden,
            "intermediate_size": a.intermediate,
            "num_hidden_layers": 1,
            "num_attention_heads": a.heads,
            "num_key_value_heads": a.kv_heads,
            "head_dim": a.head_size,
            "hidden_act": "silu",
            "rms_norm_eps": a.norm_epsilon,
            "max_position_embeddings": a.context,
            "rope_parameters": {"rope_type": "default", "rope_theta": a.rope.theta},
        },
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": steps,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
        },
    }


def labels_of(ranked: NDArray[np.int64], vocabulary: int) -> Tensor:
    """[vocabulary] the place of each id among the ranked ones; `NO_LABEL`: it has none."""
    labels = np.full(vocabulary, NO_LABEL)
    labels[ranked] = np.arange(len(ranked))
    return torch.from_numpy(labels)


def ranked_by(offsets: Tensor) -> NDArray[np.int64]:
    """The ranked ids of `d2t`: id i stands for i + d2t[i]."""
    ids: NDArray[np.int64] = np.arange(len(offsets)) + offsets.long().numpy()
    return ids


def offsets_of(ranked: NDArray[np.int64]) -> Tensor:
    """`d2t` of these ids."""
    return torch.from_numpy(ranked - np.arange(len(ranked)))


def make_head(
    config: dict[str, Any], target: TappedTarget, ranked: NDArray[np.int64], folder: Path
) -> Any:
    """The head in `folder`, or a new one that ranks by the target's own rows at first."""
    said = head_of(config)
    assert said is not None
    a = architecture_of(said.decoder, folder / "config.json")
    taps = len(said.taps(target.architecture.layers))
    torch.manual_seed(0)
    module, _ = HEADS[said.kind]
    head: Any = module(said, a, HeadShape(taps, taps * a.hidden, len(ranked)))
    with torch.no_grad():
        head.lm_head.weight[: len(ranked)].copy_(target.head[torch.from_numpy(ranked)])
        head.norm.weight.copy_(target.norm)
    if (folder / _WEIGHTS).is_file():
        weights = {name: it.float() for name, it in load_file(folder / _WEIGHTS).items()}
        weights.pop("t2d")
        if not np.array_equal(ranked_by(weights.pop("d2t")), ranked):
            raise TrainingError(f"{folder} holds a head of other ids: choose another --output")
        head.load_state_dict(weights)
    return head


def write_head(head: Any, config: dict[str, Any], ranked: NDArray[np.int64], folder: Path) -> None:
    """Write it; a run that is cut off meanwhile leaves the former one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    weights = {name: it.detach().bfloat16() for name, it in head.state_dict().items()}
    chosen = torch.zeros(head.architecture.vocabulary, dtype=torch.bool)
    chosen[torch.from_numpy(ranked)] = True
    part = folder / f"{_WEIGHTS}.part"
    save_file(weights | {"d2t": offsets_of(ranked), "t2d": chosen}, part)
    part.replace(folder / _WEIGHTS)
