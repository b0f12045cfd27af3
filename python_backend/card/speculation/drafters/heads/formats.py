"""The configuration of a head: SafeAI's EAGLE-3, AMD's PARD-2, and `speculators`'
`eagle3` and `peagle`.

Projects number hidden states differently. Here a tap is an index of `transformers`'
``hidden_states``: 0 is the embedding, i the output of layer i - 1. EAGLE, PARD-2 and `speculators`
count so too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EAGLE3 = "eagle3"
PEAGLE = "peagle"
PARD2 = "pard2"
KINDS = (EAGLE3, PEAGLE, PARD2)
"""Kinds of heads that are read, by `speculators`' names where it has them."""
_SAFE_AI = "LlamaForCausalLMEagle3"
_BLOCK, _MOST_BLOCK = 8, 32
_BLOCK_OF_PARD2 = 15
"""As in AMD's code."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head's `config.json` says.

    kind         one of `KINDS`
    decoder      the configuration of its layers, in Hugging Face's names
    named_taps   hidden states that it reads; None: EAGLE-3's default
    norm_before_residual  the residual begins at the normed state
    norm_before_fc        one norm over all tapped states
    fc_norm               a norm for each tapped state
    norm_output           the next row takes the normed state (EAGLE 3.1)
    mask_id    the token of a mask (P-EAGLE, PARD-2); None: the head makes no blocks
    mask_ids   the same, one for each place, of a head that has several
    block      tokens of a block
    scale, projection_bias  of PARD-2's projection
    """

    kind: str
    decoder: dict[str, Any]
    named_taps: tuple[int, ...] | None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_id: int | None = None
    mask_ids: tuple[int, ...] = ()
    block: int = 1
    scale: float = 1.0
    projection_bias: bool = False

    def taps(self, layers: int) -> tuple[int, ...]:
        """The hidden states that it reads of a target of `layers` layers."""
        return self.named_taps or (2, layers // 2, layers - 3)


_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def head_of(config: Mapping[str, Any]) -> HeadConfig | None:
    """What a draft's configuration says of a head; None: the draft is an ordinary model. Raises
    `ValueError` for a head of a kind that is not read, and for fields of other types."""
    if config.get("pard2"):
        return _pard2(config)
    kind = config.get("speculators_model_type")
    decoder: Any
    if kind is None:
        architectures = config.get("architectures")
        if not (isinstance(architectures, list) and _SAFE_AI in architectures):
            return None
        kind, decoder = EAGLE3, config
    else:
        decoder = config.get("transformer_layer_config")
    if kind not in KINDS:
        raise ValueError(f"a draft of the kind {kind!r} is not read; allowed: {', '.join(KINDS)}")
    if not isinstance(decoder, Mapping):
        raise ValueError("transformer_layer_config is missing; it must describe the head's layers")
    nested = config.get("eagle_config") or {}
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    ids = nested.get("eagle_aux_hidden_state_layer_ids") if ids is None else ids
    taps = _indices("eagle_aux_hidden_state_layer_ids", ids) if ids else None
    switches: dict[str, Any] = {name: config.get(name) or False for name in _SWITCHES}
    if wrong := [name for name, value in switches.items() if not isinstance(value, bool)]:
        raise ValueError(f"{wrong[0]} is {switches[wrong[0]]!r}; allowed: true, false")
    if kind != PEAGLE:
        return HeadConfig(kind, {**decoder}, taps, **switches)
    mask = _id(config, "mask_token_id")
    return HeadConfig(kind, {**decoder}, taps, **switches, mask_id=mask, block=_block_of(config))


def _pard2(config: Mapping[str, Any]) -> HeadConfig:
    scale = config.get("pard2_scale")
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ValueError(f"pard2_scale is {scale!r}; allowed: a number")
    several = config.get("pard_tokens")
    masks = (_id(config, "pard_token"),) if several is None else _indices("pard_tokens", several)
    return HeadConfig(
        PARD2,
        {**config},
        _indices("pard2_target_layers", config.get("pard2_target_layers")),
        mask_id=masks[0],
        mask_ids=masks,
        block=_BLOCK_OF_PARD2 if several is None else len(masks) + 1,
        scale=float(scale),
        projection_bias=bool(config.get("pard2_proj_bias")),
    )


def _indices(field: str, value: object) -> tuple[int, ...]:
    if not (isinstance(value, list) and value and all(type(one) is int for one in value)):
        raise ValueError(f"{field} is {value!r}; allowed: a list of indices")
    return tuple(value)


def _id(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if type(value) is not int or value < 0:
        raise ValueError(f"{field} is {value!r}; allowed: an id")
    return value


def _block_of(config: Mapping[str, Any]) -> int:
    """Tokens that the head was trained to make in one pass."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    tokens = methods[0].get("speculative_tokens")
    return tokens if type(tokens) is int and 1 < tokens <= _MOST_BLOCK else _BLOCK
