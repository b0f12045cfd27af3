"""The masks of a draft that makes a block of tokens in one pass."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from card.settings.whole import Settings
from card.speculation.sources import WITHOUT_DRAFT
from model_files import ModelFilesError, model_files_of

_BLOCK_OF_ONE_MASK = 12
"""Tokens of a block for a checkpoint that names one mask, as in AMD's code."""


def with_masks(settings: Settings) -> Settings:
    """With the masks that the draft's configuration names, where the settings name none; a draft
    with masks gets the drafter `parallel` for `auto`, and then the growth `lattice` unless the
    settings name one.

    Raises `ValueError` where `drafter: parallel` is set and no mask is known.
    """
    speculation, draft = settings.speculation, settings.draft
    if settings.drafter in WITHOUT_DRAFT or settings.engine_of(draft) == "tensorrt_llm":
        return settings
    if settings.has_head:
        return settings
    ids = draft.mask_ids or _named(settings)
    if not ids:
        if speculation.drafter == "parallel":
            raise ValueError(
                f"speculation.drafter is parallel, but the draft {draft.path} names no masks "
                "(pard_token or pard_tokens in its config.json): set draft.mask_ids, or "
                "speculation.drafter: tree"
            )
        return settings
    block = len(ids) + 1 if len(ids) > 1 else _BLOCK_OF_ONE_MASK
    changes: dict[str, Any] = {}
    if speculation.block == "auto":
        changes["block"] = block
    if speculation.drafter == "auto":
        changes["drafter"] = "parallel"
        if "growth" not in speculation.model_fields_set:
            changes["growth"] = "lattice"
    return settings.model_copy(
        update={
            "draft": draft.model_copy(update={"mask_ids": ids}),
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


def _named(settings: Settings) -> tuple[int, ...]:
    with contextlib.suppress(ModelFilesError):  # reported where the model is loaded
        files = model_files_of(settings.draft.path)
        try:
            return mask_ids_of(files.config())
        except ValueError as error:
            if isinstance(error, ModelFilesError):
                raise
            raise ValueError(f"{files.config_file}: {error}") from None
    return ()
