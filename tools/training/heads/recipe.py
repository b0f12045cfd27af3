"""The numbers of a head's training. A kind may add its own."""

from __future__ import annotations

from pydantic import Field

from training.recipe import Frozen


class HeadRecipe(Frozen):
    """
    ids            ids that the head ranks: the most frequent ones of the texts
    window         tokens of a text that one pass reads
    windows        windows in a step
    reads          how often a window is read, on average: its states take longer than its step
    recent         windows that may be read again
    steps          tokens that the head drafts
    step_weight    weight of each of these tokens' loss, as a share of the one before
    learning_rate, warm_up_steps, weight_decay, clip   of AdamW; the rate falls to 0 by a cosine
    held_out       last texts, which are for evaluation alone
    evaluation_texts   how many of these are read
    lags           lags that are evaluated: 0, 1, ... newest tokens without states
    """

    ids: int = Field(8192, ge=1)
    window: int = Field(256, ge=8)
    windows: int = Field(1, ge=1)
    reads: float = Field(1.0, ge=1)
    recent: int = Field(256, ge=1)
    steps: int = Field(6, ge=1)
    step_weight: float = Field(0.8, gt=0, le=1)
    learning_rate: float = Field(4e-4, gt=0)
    warm_up_steps: int = Field(50, ge=1)
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)
    held_out: int = Field(64, ge=1)
    evaluation_texts: int = Field(8, ge=1)
    lags: int = Field(17, ge=1)
    seed: int = 0
