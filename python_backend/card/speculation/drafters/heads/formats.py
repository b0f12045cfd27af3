"""The configuration of a head: `speculators`' `eagle3`, `peagle`, `dflash` and `dspark`, SafeAI's
EAGLE-3, AMD's PARD-2, z-lab's DFlash, and our own of `specformer` and `ctc`.

Projects number hidden states differently. Here a tap is an index of `transformers`'
``hidden_states``: 0 is the embedding, i the output of layer i - 1. EAGLE, PARD-2 and `speculators`
count so too. z-lab counts layers, so its ids are one less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EAGLE3 = "eagle3"
PEAGLE = "peagle"
PARD2 = "pard2"
DFLASH = "dflash"
DSPARK = "dspark"
SPECFORMER = "specformer"
CTC = "ctc"
KINDS = (EAGLE3, PEAGLE, PARD2, DFLASH, DSPARK, SPECFORMER, CTC)
"""Kinds of heads that are read, by `speculators`' names where it has them."""
OWN_FORMAT = "card_head_type"
"""The field that names the kind in our own format, which is otherwise that of `speculators`."""
NO_TOKEN = -1
"""The mask of a head that makes blocks and has no token for a mask."""
_SAFE_AI = "LlamaForCausalLMEagle3"
_Z_LAB = "DFlashDraftModel"
_BLOCK, _MOST_BLOCK = 8, 32
_BLOCK_OF_PARD2 = 15
"""As in AMD's code."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head's `config.json` says.

    kind         one of `KINDS`
    decoder      the configuration of its layers, in Hugging Face's names
    named_taps   hidden states that it reads; None: the kind's default
    norm_before_residual  the residual begins at the normed state
    norm_before_fc        one norm over all tapped states
    fc_norm               a norm for each tapped state
    norm_output           the next row takes the normed state (EAGLE 3.1)
    mask_id    the token of a mask; `NO_TOKEN`: blocks have other rows; None: the head makes no
               blocks
    mask_ids   the same, one for each place, of a head that has several
    block      tokens of a block
    scale, projection_bias  of PARD-2's projection
    embedding_scale  factor of the embedding (z-lab); None: the target's
    from_anchor      the row of a text's last token predicts too, and not only masks do (DSpark)
    window_non_causal  rows of a block see each other in layers with a window too
    markov_rank, markov_kind  of DSpark's serial head; 0: there is none
    confidence, confidence_reads_token  DSpark's confidence head, and whether it reads tokens
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
    embedding_scale: float | None = None
    from_anchor: bool = False
    window_non_causal: bool = False
    markov_rank: int = 0
    markov_kind: str = "vanilla"
    confidence: bool = False
    confidence_reads_token: bool = False

    @property
    def is_serial(self) -> bool:
        """Whether each token of a block is chosen behind the one before."""
        return bool(self.markov_rank) or self.kind == CTC

    def taps(self, layers: int) -> tuple[int, ...]:
        """The hidden states that it reads of a target of `layers` layers."""
        if self.named_taps:
            return self.named_taps
        if self.kind == SPECFORMER:  # the embedding, the middle, the last layers
            return (0, layers // 2, layers - 1, layers)
        return (2, layers // 2, layers - 3)


def head_of(config: Mapping[str, Any]) -> HeadConfig | None:
    """What a draft's configuration says of a head; None: the draft is an ordinary model. Raises
    `ValueError` for a head of a kind that is not read, and for fields of other types."""
    if config.get("pard2"):
        return _pard2(config)
    architectures = config.get("architectures")
    named = architectures if isinstance(architectures, list) else []
    kind = config.get("speculators_model_type", config.get(OWN_FORMAT))
    decoder: Any = config.get("transformer_layer_config")
    if kind is None:
        if _Z_LAB in named:  # `speculators` writes this name too
            return _z_lab(config)
        if _SAFE_AI not in named:
            return None
        kind, decoder = EAGLE3, config
    if kind not in KINDS:
        raise ValueError(f"a draft of the kind {kind!r} is not read; allowed: {', '.join(KINDS)}")
    if not isinstance(decoder, Mapping):
        raise ValueError("transformer_layer_config is missing; it must describe the head's layers")
    if kind in (DFLASH, DSPARK):
        return _dspark(kind, config, {**decoder})
    if kind in (SPECFORMER, CTC):
        taps = _indices("aux_hidden_state_layer_ids", config.get("aux_hidden_state_layer_ids"))
        places = _count(config, "block_size")
        return HeadConfig(kind, {**decoder}, taps, mask_id=NO_TOKEN, block=places)
    nested = config.get("eagle_config") or {}
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    ids = nested.get("eagle_aux_hidden_state_layer_ids") if ids is None else ids
    taps_or_default = _indices("eagle_aux_hidden_state_layer_ids", ids) if ids else None
    return HeadConfig(
        kind,
        {**decoder},
        taps_or_default,
        norm_before_residual=_switch(config, "norm_before_residual"),
        norm_before_fc=_switch(config, "norm_before_fc"),
        fc_norm=_switch(config, "fc_norm"),
        norm_output=_switch(config, "norm_output"),
        mask_id=_id(config, "mask_token_id") if kind == PEAGLE else None,
        block=_block_of(config) if kind == PEAGLE else 1,
    )


def _dspark(kind: str, config: Mapping[str, Any], decoder: dict[str, Any]) -> HeadConfig:
    size, is_dspark = _count(config, "block_size"), kind == DSPARK
    from_anchor = _switch(config, "sample_from_anchor", default=is_dspark)
    markov = config.get("markov_rank", 256) if is_dspark else 0
    if type(markov) is not int or markov < 0:
        raise ValueError(f"markov_rank is {markov!r}; allowed: a rank, or 0 for no serial head")
    markov_kind = config.get("markov_head_type", "vanilla")
    if markov_kind not in ("vanilla", "gated", "rnn"):
        raise ValueError(f"markov_head_type is {markov_kind!r}; allowed: vanilla, gated, rnn")
    return HeadConfig(
        kind,
        decoder,
        _indices("aux_hidden_state_layer_ids", config.get("aux_hidden_state_layer_ids")),
        mask_id=_id(config, "mask_token_id"),
        block=size if from_anchor else size - 1,
        from_anchor=from_anchor,
        window_non_causal=_switch(config, "sliding_window_non_causal"),
        markov_rank=markov,
        markov_kind=markov_kind,
        confidence=is_dspark and _switch(config, "enable_confidence_head", default=True),
        confidence_reads_token=_switch(config, "confidence_head_with_markov", default=True),
    )


def _z_lab(config: Mapping[str, Any]) -> HeadConfig:
    own = config.get("dflash_config") or {}
    every = {**config, **own}
    for field, plain in (("output_multiplier", 1), ("final_logit_softcapping", None)):
        if every.get(field, plain) not in (plain, None, 0):
            raise ValueError(f"{field} is {every[field]!r}; heads with this field are not read")
    ids = _indices("dflash_config.target_layer_ids", own.get("target_layer_ids"))
    return HeadConfig(
        DFLASH,
        {**config},
        tuple(one + 1 for one in ids),
        mask_id=_id(own, "mask_token_id"),
        block=_count(every, "block_size") - 1,
        embedding_scale=float(every.get("input_embedding_scale", 1.0)),
    )


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


def _switch(config: Mapping[str, Any], field: str, *, default: bool = False) -> bool:
    value = config.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}; allowed: true, false")
    return value


def _indices(field: str, value: object) -> tuple[int, ...]:
    if not (isinstance(value, list) and value and all(type(one) is int for one in value)):
        raise ValueError(f"{field} is {value!r}; allowed: a list of indices")
    return tuple(value)


def _id(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if type(value) is not int or value < 0:
        raise ValueError(f"{field} is {value!r}; allowed: an id")
    return value


def _count(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if type(value) is not int or not 1 < value <= _MOST_BLOCK:
        raise ValueError(f"{field} is {value!r}; allowed: 2 to {_MOST_BLOCK}")
    return value


def _block_of(config: Mapping[str, Any]) -> int:
    """Tokens that the head was trained to make in one pass."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    tokens = methods[0].get("speculative_tokens")
    return tokens if type(tokens) is int and 1 < tokens <= _MOST_BLOCK else _BLOCK
