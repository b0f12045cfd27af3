"""How layers know positions: parameters of the rotary embedding and windows of attention, as read
from a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from card.engines.families import Family

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
_LARGE = 1e12
"""Greater than any published factor or base of positions."""
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Parameters of the rotary embedding.

    share     of the numbers of a head that are rotated: the first ones
    divisors  [rotated / 2], divisors of the frequencies, which GGUF files have in place of
              ``llama3``'s parameters; ``longrope``'s for contexts up to `original_context`;
              empty: none
    longer    ``longrope``'s divisors for longer contexts
    scale     of cosines and sines
    """

    kind: str
    theta: float
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] = ()
    longer: tuple[float, ...] = ()
    share: float = 1.0
    scale: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True

    def rotated(self, head_size: int) -> int:
        """Numbers of a head that are rotated."""
        return int(head_size * self.share)


@dataclass(frozen=True, slots=True)
class LayerPositions:
    """
    rope    None: the layer knows no positions
    window  a row attends so many positions up to its own; None: all
    """

    rope: RopeScaling | None
    window: int | None = None


def read_positions(
    family: Family, config: Mapping[str, Any], layers: int, head_size: int
) -> tuple[LayerPositions, ...]:
    """Positions of each layer. Raises `ValueError` naming the field."""
    kinds = _kinds(family, config, layers)
    window = whole_number(config, "sliding_window") if _SLIDING in kinds else None
    ropes = {kind: _rope_of(config, kind, head_size) for kind in dict.fromkeys(kinds)}
    without = _without_rope(family, config, layers)
    return tuple(
        LayerPositions(
            rope=None if skips else ropes[kind], window=window if kind == _SLIDING else None
        )
        for kind, skips in zip(kinds, without, strict=True)
    )


def _kinds(family: Family, config: Mapping[str, Any], layers: int) -> list[str]:
    """Whether each layer slides, in Hugging Face's words."""
    # Mistral's, Phi's and StarCoder's layers are all alike; theirs is the window alone.
    slides = config.get("use_sliding_window", family.slides in ("all", "pattern"))
    if not slides or config.get("sliding_window") is None:
        return [_FULL] * layers
    if family.slides == "all":
        return [_SLIDING] * layers
    named = config.get("layer_types")
    if named is not None:
        if not isinstance(named, list) or not {*named} <= {_SLIDING, _FULL}:
            raise ValueError(f"layer_types are {named!r:.80}; allowed: {_SLIDING}, {_FULL}")
        if len(named) < layers:
            raise ValueError(f"layer_types has {len(named)} entries for {layers} layers")
        return named[:layers]
    if family.slides == "pattern":
        every = whole_number(config, "sliding_window_pattern", 6)
        return [_SLIDING if (layer + 1) % every else _FULL for layer in range(layers)]
    if family.slides == "upper":
        first = config.get("max_window_layers", 28)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise ValueError(f"max_window_layers is {first!r}; allowed: whole numbers from 0")
        return [_SLIDING if layer >= first else _FULL for layer in range(layers)]
    raise ValueError("use_sliding_window is true, which is not supported in this family")


def _without_rope(family: Family, config: Mapping[str, Any], layers: int) -> list[bool]:
    if not family.skips_rope:
        return [False] * layers
    named = config.get("no_rope_layers")
    if named is None:
        every = whole_number(config, "no_rope_layer_interval", 4)
        return [(layer + 1) % every == 0 for layer in range(layers)]
    if not isinstance(named, list) or len(named) < layers:
        raise ValueError(f"no_rope_layers is {named!r:.80}; allowed: a list with a 0 or 1 a layer")
    return [not it for it in named[:layers]]


def _rope_of(config: Mapping[str, Any], kind: str, head_size: int) -> RopeScaling:
    # transformers 5 writes rope_parameters; before, rope_theta stood beside rope_scaling.
    found = config.get("rope_parameters")
    of_kinds = isinstance(found, dict) and found and {*found} <= {_SLIDING, _FULL}
    if of_kinds:
        found = found.get(kind) or {}  # type: ignore[union-attr]
    elif kind == _SLIDING and (local := config.get("rope_local_base_freq")) is not None:
        found = {"rope_theta": local}
    else:
        found = found or config.get("rope_scaling") or {}
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise ValueError(f"rope_parameters {found!r:.200} are not supported; allowed: one set")
    return _rope({name: it for name, it in found.items() if it is not None}, config, head_size)


def _rope(found: dict[str, Any], config: Mapping[str, Any], head_size: int) -> RopeScaling:
    kind = found.get("rope_type", found.get("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type {kind!r} is not supported; allowed: {', '.join(ROPE_TYPES)}")
    given: dict[str, Any] = {"rope_theta": 10000, "factor": 1, "low_freq_factor": 1}
    given |= {"high_freq_factor": 4, "partial_rotary_factor": 1, "beta_fast": 32, "beta_slow": 1}
    given |= {field: value for field, value in config.items() if value is not None} | found
    low = number(given, "low_freq_factor", 1.0, _LARGE)
    high = number(given, "high_freq_factor", 1.0, _LARGE)
    if kind == "llama3" and high <= low:
        raise ValueError(f"high_freq_factor {high} must be greater than low_freq_factor {low}")
    share = number(given, "partial_rotary_factor", 1 / head_size, 1.0)
    rotated = int(head_size * share)
    if rotated % 2 or not rotated:
        raise ValueError(
            f"partial_rotary_factor {share:g} rotates {rotated} of {head_size} numbers of a head; "
            "allowed: an even count"
        )
    rope = RopeScaling(
        kind=kind,
        theta=number(given, "rope_theta", 1.0, _LARGE),
        factor=number(given, "factor", 1.0, _LARGE),
        low_frequency_factor=low,
        high_frequency_factor=high,
        original_context=whole_number(
            found if "original_max_position_embeddings" in found else config,
            "original_max_position_embeddings",
            8192,
        ),
        divisors=_divisors(found, "frequency_divisors", rotated),
        share=share,
        beta_fast=number(given, "beta_fast", 1e-3, _LARGE),
        beta_slow=number(given, "beta_slow", 1e-3, _LARGE),
        truncates=found.get("truncate") is not False,
    )
    return _COMPLETED[kind](rope, found, config, rotated) if kind in _COMPLETED else rope


def _yarn(
    rope: RopeScaling, found: dict[str, Any], config: Mapping[str, Any], _: int
) -> RopeScaling:
    """YaRN (Peng et al., arXiv 2309.00071)."""
    original = found.get("original_max_position_embeddings")
    if original is None:
        rope = replace(rope, original_context=whole_number(config, "max_position_embeddings"))
    if "factor" not in found:
        longest = whole_number(config, "max_position_embeddings")
        rope = replace(rope, factor=max(1.0, longest / rope.original_context))

    def magnified(by: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * by * math.log(rope.factor) + 1.0

    scale = found.get("attention_factor")
    if scale is None:
        above, below = found.get("mscale"), found.get("mscale_all_dim")
        scale = magnified(above) / magnified(below) if above and below else magnified(1.0)
    return replace(rope, scale=number({"attention_factor": scale}, "attention_factor", 0, _LARGE))


def _longrope(
    rope: RopeScaling, found: dict[str, Any], config: Mapping[str, Any], rotated: int
) -> RopeScaling:
    """LongRoPE (Ding et al., arXiv 2402.13753)."""
    short, longer = (_divisors(found, f"{name}_factor", rotated) for name in ("short", "long"))
    if not short or not longer:
        raise ValueError("longrope needs short_factor and long_factor")
    longest = whole_number(config, "max_position_embeddings")
    factor = found.get("factor") or longest / rope.original_context
    scale = found.get("attention_factor")
    if scale is None:
        scale = 1.0
        if factor > 1:
            scale = math.sqrt(1 + math.log(factor) / math.log(rope.original_context))
    scale = number({"attention_factor": scale}, "attention_factor", 0, _LARGE)
    return replace(rope, divisors=short, longer=longer, scale=scale)


_COMPLETED: Mapping[
    str, Callable[[RopeScaling, dict[str, Any], Mapping[str, Any], int], RopeScaling]
] = {"yarn": _yarn, "longrope": _longrope}


def _divisors(rope: Mapping[str, Any], field: str, rotated: int) -> tuple[float, ...]:
    divisors = rope.get(field, [])
    sound = isinstance(divisors, list | tuple) and all(
        isinstance(it, int | float) and 1 / _LARGE < it < _LARGE for it in divisors
    )
    if not sound:
        raise ValueError("the divisors of the rotary frequencies are not all positive numbers")
    if len(divisors) not in (0, rotated // 2):
        raise ValueError(f"{field} has {len(divisors)} numbers; allowed: {rotated // 2}")
    return tuple(map(float, divisors))


def number(config: Mapping[str, Any], field: str, least: float, most: float) -> float:
    """The number `field`, which must be there. Raises `KeyError` and `ValueError`."""
    value = config[field]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{field} is {value!r}; allowed: numbers from {least:g} to {most:g}")
    return float(value)


_MOST = 1 << 53
"""Larger whole numbers are no exact floats."""


def whole_number(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """The whole number `field`; absent or null means `default`, if there is one. Raises `KeyError`
    and `ValueError`."""
    value = config[field] if default is None else config.get(field)
    found = default if value is None else value
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= _MOST:
        raise ValueError(f"{field} is {value!r:.80}; allowed: whole numbers from 1 to {_MOST}")
    return found
