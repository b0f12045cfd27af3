"""Random weights, and how much the target's later layers contribute.

Every tensor is drawn from a generator of its own, seeded by its name, so that one can be drawn
again with another scale without a copy of the model. The same seed gives the same weights on the
same kind of device.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from aligned.shapes import PairShape

_HEAD_GAIN = 3.0
"""Standard deviation of the logits: about that of trained models."""

_CONTRIBUTING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What a layer adds to the hidden state goes through these."""


def random_target(
    shape: PairShape, seed: int, dtype: torch.dtype, device: torch.device
) -> LlamaForCausalLM:
    """A target: all its layers contribute fully."""
    with device:
        model = LlamaForCausalLM._from_config(
            LlamaConfig(**shape.config(shape.layers)), dtype=dtype
        )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _draw(name, weight, seed)
    return model.requires_grad_(False).train(False)


def weigh_later_layers(model: LlamaForCausalLM, shape: PairShape, seed: int, scale: float) -> None:
    """Draw the output matrices of the layers behind the draft's again, times `scale`."""
    with torch.no_grad():
        for index in range(shape.draft_layers, shape.layers):
            for suffix in _CONTRIBUTING:
                name = f"model.layers.{index}.{suffix}"
                weight = model.get_parameter(name)
                _draw(name, weight, seed)
                weight.mul_(scale)


def _draw(name: str, weight: Tensor, seed: int) -> None:
    if weight.ndim == 1:  # norms
        weight.fill_(1.0)
        return
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(weight.device).manual_seed(int.from_bytes(digest[:7], "big"))
    gain = _HEAD_GAIN if name.startswith("lm_head") else 1.0
    deviation = 1.0 if "embed_tokens" in name else gain / weight.shape[1] ** 0.5
    weight.normal_(0.0, deviation, generator=generator)
