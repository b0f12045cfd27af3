"""A model's shape, read from the configuration of a Llama-family decoder. The configuration has the
names of Hugging Face's ``config.json`` in every file format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from card.engines.interface import EngineError
from card.engines.quantised import check_not_quantised
from model_files import ModelFilesError, model_files_of, sliding_window

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Supported ``model_type`` values (SmolLM and TinyLlama are ``llama``)."""

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Parameters of the rotary embedding; four of them belong to ``llama3``.

    divisors  [head size / 2], divisors of the frequencies, which GGUF files have in place of
              ``llama3``'s parameters; empty: none
    """

    kind: str
    theta: float
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parameters of a checkpoint's decoder."""

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

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads


_LARGE = 1e12
"""Greater than any published factor or base of positions."""


def read_architecture(path: Path) -> Architecture:
    """Read and check a model's configuration. Raises `EngineError` naming what is not supported."""
    try:
        files = model_files_of(path)
        config = files.config()
    except ModelFilesError as error:
        hint = "" if path.exists() else "; a model is a Hugging Face directory or a GGUF file"
        raise EngineError(f"{error}{hint}") from error
    check_not_quantised(path, config)
    file = files.config_file
    family = config.get("model_type")
    if family not in FAMILIES:
        raise EngineError(
            f"{file}: model family {family!r} is not supported; allowed: {', '.join(FAMILIES)}"
        )
    try:
        return _architecture(family, config)
    except KeyError as error:
        raise EngineError(f"{file}: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError) as error:
        raise EngineError(f"{file}: {error}") from error


def _architecture(family: str, config: dict[str, Any]) -> Architecture:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"hidden_act {activation!r} is not supported; allowed: silu")
    heads = _positive(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads", default=heads)
    hidden = _positive(config, "hidden_size")
    if heads % kv_heads:
        raise ValueError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    head_size = _positive(config, "head_dim", default=max(1, hidden // heads))
    if head_size % 2:
        raise ValueError(f"heads of {head_size} numbers are not supported; allowed: even sizes")
    context = _positive(config, "max_position_embeddings")
    if sliding_window(config) is not None:
        context = min(context, _positive(config, "sliding_window"))
    return Architecture(
        family=family,
        vocabulary=_positive(config, "vocab_size"),
        hidden=hidden,
        layers=_positive(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate=_positive(config, "intermediate_size"),
        norm_epsilon=_number(config, "rms_norm_eps", 0.0, 1.0),
        context=context,
        tied_embeddings=_switch(config, "tie_word_embeddings"),
        query_key_norm=family == "qwen3",
        rope=_rope(config),
    )


def _switch(config: dict[str, Any], field: str) -> bool:
    """Whether `field` is true; absent or null means false."""
    value = config.get(field)
    if not isinstance(value, bool | None):
        raise ValueError(f"{field} is {value!r}; allowed: true, false")
    return bool(value)


def _positive(config: dict[str, Any], field: str, default: int | None = None) -> int:
    """The whole number `field`; absent or null means `default`, if there is one."""
    value = config[field] if default is None else config.get(field)
    number = default if value is None else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{field} is {value!r}; allowed: whole numbers of at least 1")
    return number


def _rope(config: dict[str, Any]) -> RopeScaling:
    # transformers 5 writes rope_parameters; before, rope_theta stood beside rope_scaling.
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise ValueError(f"rope_parameters {found!r} are not supported; allowed: one set of them")
    found = {field: value for field, value in found.items() if value is not None}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type {kind!r} is not supported; allowed: {', '.join(ROPE_TYPES)}")
    rotated = found.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if rotated is not None and rotated != 1:
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    given = {"rope_theta": 10000, "factor": 1, "low_freq_factor": 1, "high_freq_factor": 4}
    given |= {field: value for field, value in config.items() if value is not None} | found
    low = _number(given, "low_freq_factor", 1.0, _LARGE)
    high = _number(given, "high_freq_factor", 1.0, _LARGE)
    if kind == "llama3" and high <= low:
        raise ValueError(f"high_freq_factor {high} must be greater than low_freq_factor {low}")
    return RopeScaling(
        kind=kind,
        theta=_number(given, "rope_theta", 1.0, _LARGE),
        factor=_number(given, "factor", 1.0, _LARGE),
        low_frequency_factor=low,
        high_frequency_factor=high,
        original_context=_positive(found, "original_max_position_embeddings", default=8192),
        divisors=_divisors(found),
    )


def _divisors(rope: dict[str, Any]) -> tuple[float, ...]:
    divisors = rope.get("frequency_divisors", [])
    if not all(isinstance(it, float) and 1 / _LARGE < it < _LARGE for it in divisors):
        raise ValueError("the divisors of the rotary frequencies are not all positive numbers")
    return tuple(divisors)


def _number(config: dict[str, Any], field: str, least: float, most: float) -> float:
    """The number `field`, which must be there."""
    value = config[field]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{field} is {value!r}; allowed: numbers from {least:g} to {most:g}")
    return float(value)
