"""The drafters of this process, as the settings say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from card.engines import Engine, EngineError
from card.engines.interface import pass_cost_ms
from card.settings import Settings
from card.speculation.drafters import DRAFTERS, DraftConfig, Drafter
from card.speculation.drafters.growth import GROWTHS, GrowthConfig
from card.speculation.drafters.parallel import ParallelDrafter
from card.speculation.ngram_tables import table_of_setting


def make_drafters(
    model: Any, settings: Settings, small: Engine | None = None
) -> dict[str, Drafter]:
    """Drafters by registry key; empty where candidates need no draft.

    model  the drafter's engine: an `Engine`, or the `Chains` of another project's
    small  the engine of `draft_small`, for a drafter that runs on two engines
    """
    key = settings.drafter
    if key not in DRAFTERS:
        return {}
    runs_on = (model, small) if settings.has_small_draft else model
    config = draft_config(settings)
    if config.mask_ids and max(config.mask_ids) >= model.vocabulary:
        raise EngineError(
            f"{settings.draft.path}: the mask {max(config.mask_ids)} is no id of the draft's "
            f"vocabulary of {model.vocabulary}; check pard_token in its config.json, or "
            "draft.mask_ids"
        )
    if GROWTHS[config.growth].weighs_ngrams:
        config = replace(
            config, ngrams=table_of_setting(settings.speculation.ngram_table, model.vocabulary)
        )
    return {key: DRAFTERS[key](runs_on, config)}


def token_pass_ms(engine: Engine, settings: Settings) -> float:
    """Milliseconds that the draft computes for one more token of a chain while the target does not
    compute: a pass, or its share of a block's pass; 0: unknown."""
    costs_ms, block = engine.row_costs_ms, draft_config(settings).block
    return pass_cost_ms(costs_ms, block) / block if costs_ms else 0.0


def draft_config(settings: Settings) -> DraftConfig:
    """The drafters' configuration."""
    speculation, draft = settings.speculation, settings.draft
    guest = draft.vllm if settings.engine_of(draft) == "vllm" else draft.tensorrt_llm
    makes_blocks = issubclass(DRAFTERS.get(settings.drafter, object), ParallelDrafter)
    drafts_blocks = makes_blocks and speculation.block != "auto"
    block = int(speculation.block) if drafts_blocks else 1
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
        side_branches=guest.side_branches,
        side_branch_tokens=guest.side_branch_tokens,
        mask_ids=settings.draft.mask_ids if block > 1 else (),
        block=block,
    )
