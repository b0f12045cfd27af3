"""The families of decoders, as data: what sets each apart from Llama's decoder, beside the numbers
of a configuration. One decoder follows these descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """
    norm             ``rms``, or ``layer``: LayerNorm with a bias (Ba et al., arXiv 1607.06450)
    norms_before     whether the inputs of attention and of the network are normalised
    norms_after      whether their outputs are normalised, before they are added
    norms_less_one   whether safetensors hold the weights of norms less one
    query_key_norm   whether query and key are normalised: each ``head`` by itself, or all heads of
                     a row as one vector (``whole``)
    gated            whether the network has a gate
    fused            whether files hold query, key and value as one matrix, and gate and up as one
    rotated_pairs    whether GGUF files hold the rows of query and key as llama.cpp's rotation of
                     neighbours reads them; the decoder rotates a number of a head's first half
                     with one of its second half
    slides           how layers slide: ``no``; ``all``; ``upper``: from ``max_window_layers`` on;
                     ``pattern``: all but every sixth
    skips_rope       whether every fourth layer has no positions (NoPE, arXiv 2305.19466)
    epsilon          field of the configuration with the epsilon of norms
    activation       field with the activation; its default is `default_activation`
    tied             whether the embedding is the head where the configuration does not say
    roots_embedding  whether the embedding is multiplied by the root of its size
    query_scalar     field with a number, and its default; the inverse root of the number scales the
                     scores of attention
    factors          fields with factors, by the names of `Architecture`'s
    divisors         fields with divisors, by the names of `Architecture`'s factors
    names            Hugging Face's names by GGUF's names, where they differ from Llama's
    on_cuda          whether the kernels for CUDA run this family
    """

    norm: Literal["rms", "layer"] = "rms"
    norms_before: bool = True
    norms_after: bool = False
    norms_less_one: bool = False
    query_key_norm: Literal["", "head", "whole"] = ""
    gated: bool = True
    fused: bool = False
    rotated_pairs: bool = False
    slides: Literal["no", "all", "upper", "pattern"] = "no"
    skips_rope: bool = False
    epsilon: str = "rms_norm_eps"
    activation: str = "hidden_act"
    default_activation: str = "silu"
    tied: bool = False
    roots_embedding: bool = False
    query_scalar: tuple[str, float] | None = None
    factors: Mapping[str, str] = field(default_factory=dict)
    divisors: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    on_cuda: bool = False


_NORMS_BOTH_SIDES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(rotated_pairs=True, on_cuda=True),
    "mistral": Family(rotated_pairs=True, slides="all", on_cuda=True),
    "qwen2": Family(slides="upper", on_cuda=True),
    "qwen3": Family(query_key_norm="head", slides="upper", on_cuda=True),
    "gemma3_text": Family(
        norms_after=True,
        norms_less_one=True,
        query_key_norm="head",
        slides="pattern",
        activation="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        tied=True,
        roots_embedding=True,
        query_scalar=("query_pre_attn_scalar", 256.0),
        names=_NORMS_BOTH_SIDES,
    ),
    "phi3": Family(fused=True, slides="all"),
    "smollm3": Family(rotated_pairs=True, skips_rope=True, tied=True),
    "granite": Family(
        rotated_pairs=True,
        factors={
            "embedding_scale": "embedding_multiplier",
            "attention_scale": "attention_multiplier",
            "residual_scale": "residual_multiplier",
        },
        divisors={"logit_scale": "logits_scaling"},
    ),
    "olmo2": Family(
        norms_before=False, norms_after=True, query_key_norm="whole", names=_NORMS_BOTH_SIDES
    ),
    "starcoder2": Family(
        norm="layer",
        gated=False,
        slides="all",
        epsilon="norm_epsilon",
        default_activation="gelu_pytorch_tanh",
        tied=True,
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
}
"""By ``model_type`` (SmolLM, SmolLM2 and TinyLlama are ``llama``; Phi-4 is ``phi3``)."""

ELSEWHERE = "; for a target that vLLM runs, set target.engine: vllm"
"""The hint behind a refusal of a family."""
