"""The drafters of this process, as the settings say."""

from __future__ import annotations

from typing import Any

from card.engines import Engine
from card.settings import Settings
from card.speculation.drafters import DRAFTERS, DraftConfig, Drafter
from card.speculation.drafters.growth import GrowthConfig


def make_drafters(
    model: Any, settings: Settings, small: Engine | None = None
) -> dict[str, Drafter]:
    """Drafters by registry key; empty where candidates need no draft.

    model  the drafter's engine: an `Engine`, or TensorRT-LLM's `Runtime`
    small  the engine of `draft_small`, for a drafter that runs on two engines
    """
    key = settings.drafter
    if key not in DRAFTERS:
        return {}
    runs_on = (model, small) if settings.has_small_draft else model
    return {key: DRAFTERS[key](runs_on, draft_config(settings))}


def draft_config(settings: Settings) -> DraftConfig:
    """The drafters' configuration."""
    speculation, tensorrt = settings.speculation, settings.draft.tensorrt_llm
    return DraftConfig(
        width=speculation.width,
        depth=speculation.depth,
        growth=speculation.growth,
        growth_config=GrowthConfig(
            siblings=speculation.siblings,
            fan_out=speculation.fan_out,
            doubt=speculation.doubt,
            doubt_branches=speculation.doubt_branches,
            shared_tokens=speculation.shared_tokens,
        ),
        ngram_tokens=speculation.ngram_tokens,
        parcel=speculation.parcel,
        adapts=speculation.rows == "auto",
        prefill_chunk=settings.serving.prefill_chunk,
        side_branches=tensorrt.side_branches,
        side_branch_tokens=tensorrt.side_branch_tokens,
        stall_timeout_s=tensorrt.stall_timeout_s,
    )
