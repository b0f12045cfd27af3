"""Settings from the draft's configuration: masks for blocks, and hidden states of the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.settings.whole import Settings
from card.speculation.drafters.heads.formats import KINDS, HeadConfig, head_of
from card.speculation.sources import WITHOUT_DRAFT
from model_files import ModelFilesError, model_files_of

_BLOCK_OF_ONE_MASK = 12
"""Tokens of a block for a checkpoint that names one mask, as in AMD's code."""


def with_draft_files(settings: Settings) -> Settings:
    """With the drafter, the block, the masks and the taps that the draft's configuration names,
    where the settings name none.

    Raises `ValueError` where settings and draft disagree.
    """
    draft, named = settings.draft, settings.speculation.drafter
    if settings.drafter in WITHOUT_DRAFT or settings.engine_of(draft) == "tensorrt_llm":
        return settings
    try:
        files = model_files_of(draft.path)
        config, file = files.config(), files.config_file
    except ModelFilesError:  # reported where the model is loaded
        config, file = {}, draft.path
    try:
        head = head_of(config) if draft.path.is_dir() else None
        ids = draft.mask_ids or (mask_ids_of(config) if head is None else ())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if head is not None:
        return _with_head(settings, head)
    if named in KINDS:
        raise ValueError(
            f"speculation.drafter is {named}, but the draft {draft.path} is no head that reads "
            "the target's hidden states; set speculation.drafter: auto"
        )
    if ids:
        block = len(ids) + 1 if len(ids) > 1 else _BLOCK_OF_ONE_MASK
        drafter = "parallel" if named == "auto" else named
        return _with_masks(settings, ids, block, drafter, lattice=named == "auto")
    if named == "parallel":
        raise ValueError(
            f"speculation.drafter is parallel, but the draft {draft.path} names no masks "
            "(pard_token or pard_tokens in its config.json): set draft.mask_ids, or "
            "speculation.drafter: tree"
        )
    return settings


def _with_head(settings: Settings, head: HeadConfig) -> Settings:
    """With a draft that reads the target's hidden states. Raises `ValueError`."""
    draft, named = settings.draft, settings.speculation.drafter
    if named not in ("auto", head.kind):
        raise ValueError(
            f"speculation.drafter is {named}, but the draft {draft.path} is a head of the kind "
            f"{head.kind}; set speculation.drafter: auto"
        )
    if settings.guest is not None or draft.device != "cpu":
        raise ValueError(
            f"the draft {draft.path} reads the target's hidden states: it runs with draft.device: "
            "cpu, and a target of the engines openvino and torch"
        )
    try:
        own = head.taps(read_architecture(settings.target.path).layers)
    except EngineError as error:
        raise ValueError(str(error)) from None
    if draft.taps and len(draft.taps) != len(own):
        raise ValueError(
            f"draft.taps names {len(draft.taps)} hidden states; the draft {draft.path} reads "
            f"{len(own)}"
        )
    masks = head.mask_ids or (() if head.mask_id is None else (head.mask_id,))
    taken = settings.draft.model_copy(update={"taps": draft.taps or own})
    settings = settings.model_copy(update={"draft": taken})
    return _with_masks(
        settings, masks, head.block, head.kind, lattice=bool(masks) and not head.is_serial
    )


def _with_masks(
    settings: Settings, ids: tuple[int, ...], block: int, drafter: str, *, lattice: bool
) -> Settings:
    """With these masks and this drafter, and the block and the growth `lattice` where the settings
    name none."""
    speculation = settings.speculation
    changes: dict[str, Any] = {"drafter": drafter}
    if ids and speculation.block == "auto":
        changes["block"] = block
    if lattice and "growth" not in speculation.model_fields_set:
        changes["growth"] = "lattice"
    return settings.model_copy(
        update={
            "draft": settings.draft.model_copy(update={"mask_ids": ids}),
            "speculation": speculation.model_copy(update=changes),
        }
    )


def mask_ids_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids of masks in a model's configuration: `pard_token` of AMD's checkpoints (one mask for
    all places), or `pard_tokens` (one for each place). Raises `ValueError` for other values."""
    named = config.get("pard_tokens", config.get("pard_token"))
    if named is None:
        return ()
    ids = named if isinstance(named, list) else [named]
    if not ids or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in ids):
        raise ValueError(f"pard_token is {named!r}; allowed: an id, or a list of ids")
    return tuple(ids)
