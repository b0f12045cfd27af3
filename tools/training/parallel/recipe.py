"""The numbers of a tuning for one-pass drafting."""

from __future__ import annotations

from pydantic import Field

from training.recipe import Frozen


class ParallelRecipe(Frozen):
    """How a draft learns to fill a block.

    A pass of training reads windows of texts. Behind some tokens of a window (the anchors) stand
    chains of masks; mask ``i`` of a chain predicts the token ``i`` places behind the next one.
    """

    block: int = Field(default=6, ge=2, description="tokens that one pass makes")
    window: int = Field(default=256, ge=8, description="tokens of a text that a pass reads")
    windows: int = Field(default=2, ge=1, description="windows in a step")
    anchors: int = Field(default=128, ge=1, description="chains of masks in a window")
    keep: float = Field(
        default=0.7, gt=0, le=1, description="share of chains that go on to the next place"
    )
    keep_least: float = Field(
        default=0.2, gt=0, le=1, description="share of chains that reach every place at least"
    )
    held_rows: int = Field(
        default=64, ge=0, description="rows of a window that keep what the draft knew"
    )
    held_weight: float = Field(default=1.0, ge=0, description="weight of these rows' loss")
    soft_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the masks' loss that is the divergence from the draft step by step; "
        "the rest is the cross-entropy with the target's tokens",
    )
    peak_rate: float = Field(default=5e-4, gt=0)
    mask_rate: float = Field(default=4e-3, gt=0, description="rate of the masks' embeddings")
    warmup_steps: int = Field(default=50, ge=0)
    hold: float = Field(default=0.3, ge=0, lt=1, description="share of the time at the peak rate")
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, gt=0, description="largest gradient norm")
    held_out: int = Field(default=64, ge=1, description="texts that are only evaluated")
    evaluation_window: int = Field(default=320, ge=8)
    evaluation_anchors: int = Field(default=24, ge=1)
    seed: int = Field(default=0, ge=0)
