"""The drafters of this process, as the settings say."""

from __future__ import annotations

from typing import Any

from card.settings import Settings
from card.speculation.drafters import DRAFTERS, DraftConfig, Drafter
from card.speculation.drafters.growth import GrowthConfig


def make_drafters(model: Any, settings: Settings) -> dict[str, Drafter]:
    """By registry key; none, where candidates need no draft.

    model  what the drafter runs on: an `Engine`, or TensorRT-LLM's `Runtime`
    """
    key = settings.drafter
    return {key: DRAFTERS[key](model, draft_config(settings))} if key in DRAFTERS else {}


def draft_config(settings: Settings) -> DraftConfig:
    """What drafters go by."""
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
        ngram_tokens=speculation.lookahead,
        adapts=speculation.rows == "auto",
        prefill_chunk=settings.serving.prefill_chunk,
        side_branches=tensorrt.side_branches,
        side_branch_tokens=tensorrt.side_branch_tokens,
        stall_timeout_s=tensorrt.stall_timeout_s,
    )
