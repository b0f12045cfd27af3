"""The hidden states of the target that a draft reads."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.settings.whole import Settings
from card.speculation.drafters.heads.formats import KINDS, HeadConfig, head_of
from card.speculation.sources import WITHOUT_DRAFT
from model_files import ModelFilesError, model_files_of


def with_head(settings: Settings) -> Settings:
    """With the drafter and the taps of a draft that reads the target's hidden states, if the draft
    is one.

    Raises `ValueError` where settings and draft disagree.
    """
    speculation, draft, named = settings.speculation, settings.draft, settings.speculation.drafter
    if settings.drafter in WITHOUT_DRAFT or settings.engine_of(draft) == "tensorrt_llm":
        return settings
    head = _head_at(draft.path) if draft.path.is_dir() else None
    if head is None:
        if named in KINDS:
            raise ValueError(
                f"speculation.drafter is {named}, but the draft {draft.path} is no head that reads "
                "the target's hidden states; set speculation.drafter: auto"
            )
        return settings
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
    taps = draft.taps or own
    masks = head.mask_ids or (() if head.mask_id is None else (head.mask_id,))
    changes: dict[str, Any] = {"drafter": head.kind}
    if masks and speculation.block == "auto":
        changes["block"] = head.block
    if masks and "growth" not in speculation.model_fields_set:
        changes["growth"] = "lattice"
    return settings.model_copy(
        update={
            "draft": draft.model_copy(update={"taps": taps, "mask_ids": masks}),
            "speculation": speculation.model_copy(update=changes),
        }
    )


def _head_at(path: Path) -> HeadConfig | None:
    with contextlib.suppress(ModelFilesError):  # reported where the model is loaded
        files = model_files_of(path)
        config = files.config()
        try:
            return head_of(config)
        except ValueError as error:
            raise ValueError(f"{files.config_file}: {error}") from None
    return None
