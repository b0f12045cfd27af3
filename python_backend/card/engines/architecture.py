"""A model's shape, read from its configuration. The configuration has the
names of Hugging Face's ``config.json`` in every file format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from card.engines.families import ELSEWHERE, FAMILIES, Family
from card.engines.interface import EngineError
from card.engines.positions import (
    LayerPositions,
    RopeScaling,
    number,
    read_positions,
    whole_number,
)
from card.engines.quantised import check_not_quantised
from model_files import ModelFilesError, model_files_of


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parameters of a checkpoint's decoder.

    rope              of the first layer with positions
    positions         of each layer; empty: every layer has `rope` and no window
    activation        of the network: ``silu``; ``gelu``: with tanh (arXiv 1606.08415)
    attention_scale   of the scores; 0: one over the root of the size of a head
    embedding_scale, residual_scale, logit_scale
                      factors of the embedding, of what attention and network add, of the logits
    logit_cap         logits are cap · tanh(logits / cap); 0: they are not
    """

    family: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    norm_epsilon: float
    context: int
    tied_embeddings: bool
    query_key_norm: bool
    rope: RopeScaling
    positions: tuple[LayerPositions, ...] = ()
    activation: str = "silu"
    attention_scale: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0

    @property
    def description(self) -> Family:
        """What sets its family apart."""
        return FAMILIES[self.family]

    @property
    def score_scale(self) -> float:
        """Factor of the scores of attention."""
        return self.attention_scale or self.head_size**-0.5

    def at(self, layer: int) -> LayerPositions:
        """The positions of a layer."""
        return self.positions[layer] if self.positions else LayerPositions(self.rope)

    @property
    def is_plain(self) -> bool:
        """Whether its layers are Llama's, with biases or norms of heads at most. Only such layers
        are smoothed, and run on CUDA."""
        places = [self.at(layer).rope for layer in range(self.layers)]
        return (
            self.description.on_cuda
            and self.activation == "silu"
            and not self.logit_cap
            and (self.rope.share, self.rope.scale) == (1, 1)
            and all(rope == self.rope for rope in places)
        )

    @property
    def windows(self) -> set[int]:
        """Sizes of the windows of its layers."""
        return {it.window for it in self.positions if it.window is not None}

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads


_LARGE = 1e12
_MOST_LAYERS = 10_000
"""Every layer is described before the weights are looked at, so their number has a bound."""
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
}
"""By Hugging Face's names."""


def read_architecture(path: Path) -> Architecture:
    """Read and check a model's configuration. Raises `EngineError` naming what is not supported."""
    try:
        files = model_files_of(path)
        config = files.config()
    except ModelFilesError as error:
        hint = "" if path.exists() else "; a model is a Hugging Face directory or a GGUF file"
        raise EngineError(f"{error}{hint}") from error
    check_not_quantised(path, config)
    return architecture_of(config, files.config_file)


def architecture_of(config: dict[str, Any], file: Path) -> Architecture:
    """The architecture of a configuration that stands in `file`. Raises `EngineError`."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise EngineError(
            f"{file}: model family {family!r} is not supported; allowed: {', '.join(FAMILIES)}"
            f"{ELSEWHERE}"
        )
    try:
        return _architecture(family, config)
    except KeyError as error:
        raise EngineError(f"{file}: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError) as error:
        raise EngineError(f"{file}: {error}") from error


def _architecture(name: str, config: dict[str, Any]) -> Architecture:
    family = FAMILIES[name]
    activation = config.get(family.activation) or family.default_activation
    if activation not in _ACTIVATIONS:
        allowed = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{family.activation} {activation!r} is not supported; allowed: {allowed}")
    for field in ("attn_logit_softcapping", "use_bidirectional_attention"):
        if config.get(field):
            raise ValueError(f"{field} is {config[field]!r}, which is not supported{ELSEWHERE}")
    heads = whole_number(config, "num_attention_heads")
    kv_heads = whole_number(config, "num_key_value_heads", default=heads)
    hidden = whole_number(config, "hidden_size")
    if heads % kv_heads:
        raise ValueError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    head_size = whole_number(config, "head_dim", default=max(1, hidden // heads))
    if head_size % 2:
        raise ValueError(f"heads of {head_size} numbers are not supported; allowed: even sizes")
    layers = whole_number(config, "num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {layers}; allowed: at most {_MOST_LAYERS}")
    positions = read_positions(family, config, layers, head_size)
    ropes = [it.rope for it in positions if it.rope is not None]
    return Architecture(
        family=name,
        vocabulary=whole_number(config, "vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate=whole_number(config, "intermediate_size"),
        norm_epsilon=number(config, family.epsilon, 0.0, 1.0),
        context=whole_number(config, "max_position_embeddings"),
        tied_embeddings=_switch(config, "tie_word_embeddings", family.tied),
        query_key_norm=bool(family.query_key_norm),
        rope=ropes[0] if ropes else RopeScaling("default", 10000.0),
        positions=positions,
        activation=_ACTIVATIONS[activation],
        **_scales(family, config, hidden),
    )


def _scales(family: Family, config: dict[str, Any], hidden: int) -> dict[str, float]:
    """Factors that a family has, from the fields of its configuration."""

    def factor(field: str, default: float = 1.0) -> float:
        value = config.get(field)
        return number({field: default if value is None else value}, field, 1e-9, _LARGE)

    scales = {name: factor(field) for name, field in family.factors.items()}
    scales |= {name: 1 / factor(field) for name, field in family.divisors.items()}
    if family.roots_embedding:
        scales["embedding_scale"] = math.sqrt(hidden)
    if family.query_scalar is not None:
        scales["attention_scale"] = factor(*family.query_scalar) ** -0.5
    if config.get("final_logit_softcapping"):
        scales["logit_cap"] = factor("final_logit_softcapping")
    return scales


def _switch(config: dict[str, Any], field: str, default: bool) -> bool:
    """Whether `field` is true; absent or null means `default`."""
    value = config.get(field)
    if not isinstance(value, bool | None):
        raise ValueError(f"{field} is {value!r}; allowed: true, false")
    return default if value is None else value
