"""Every number that decides what a trained pair looks like, in one validated object.

The defaults are the recipe of `tests/pair`. A JSON file may override any of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from training.divergences import Divergence
from training.errors import TrainingError


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sources(Frozen):
    """Which Python files become text."""

    smallest_bytes: int = Field(default=400, ge=1)
    largest_bytes: int = Field(default=200_000, ge=1)
    held_out_percent: int = Field(default=1, ge=1, le=50)

    @model_validator(mode="after")
    def _sizes_in_order(self) -> Sources:
        if self.smallest_bytes > self.largest_bytes:
            raise ValueError("smallest_bytes must not be larger than largest_bytes")
        return self


class Architecture(Frozen):
    """A Llama decoder with tied embeddings."""

    layers: int = Field(ge=1)
    hidden: int = Field(ge=2)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    rope_theta: float = Field(default=10_000.0, gt=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> Architecture:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError("hidden must be heads times an even head size")
        if self.heads % self.kv_heads:
            raise ValueError("heads must be a multiple of kv_heads")
        return self


class Training(Frozen):
    """One run of the optimiser: AdamW, warm-up, a held peak, then linear to zero.

    ``hold`` is the share of the steps at the peak before the rate begins to fall.
    """

    steps: int = Field(ge=1)
    batch: int = Field(default=8, ge=1, description="sequences in a step")
    peak_rate: float = Field(gt=0)
    warmup_steps: int = Field(default=100, ge=0)
    hold: float = Field(default=0.3, ge=0, lt=1)
    weight_decay: float = Field(default=0.1, ge=0)
    clip: float = Field(default=1.0, gt=0, description="largest gradient norm")


class Distillation(Frozen):
    """What is lowered, on which texts.

    ``on_policy_share`` of a batch is written by the draft as it is at that step, and only what it
    wrote counts; ``own_share`` of the others is the target's own text, the rest is corpus. Of the
    target's texts, ``greedy_share`` are greedy; the others are sampled, the temperatures taking
    turns. A text begins with a corpus prefix of a length between the two given; the target's
    begin with that of a document or from anywhere, in turns.
    """

    divergence: Divergence = Divergence.FORWARD_KL
    texts: int = Field(default=320, ge=1, description="sequences that the target continues")
    own_share: float = Field(
        default=0.6, ge=0, le=1, description="share of a batch that is its text"
    )
    on_policy_share: float = Field(
        default=0.0, ge=0, le=1, description="share of a batch that the draft writes"
    )
    draft_tokens: int = Field(default=128, ge=1, description="tokens that it writes for a text")
    greedy_share: float = Field(default=0.5, ge=0, le=1)
    temperatures: tuple[float, ...] = Field(default=(0.8, 1.0), min_length=1)
    shortest_prefix: int = Field(default=16, ge=1)
    longest_prefix: int = Field(default=128, ge=1)
    generation_batch: int = Field(default=32, ge=1, description="texts continued at once")
    ranked_share: float = Field(
        default=0.5, gt=0, le=1, description="share of the vocabulary that the draft ranks"
    )

    @model_validator(mode="after")
    def _valid_ranges(self) -> Distillation:
        if self.shortest_prefix > self.longest_prefix:
            raise ValueError("shortest_prefix must not be larger than longest_prefix")
        if min(self.temperatures) <= 0:
            raise ValueError("temperatures must be above 0; greedy_share sets the greedy texts")
        return self


class Recipe(Frozen):
    """A whole pair. The defaults are that of `tests/pair`: 2.9M and 0.4M parameters."""

    seed: int = Field(default=0, ge=0)
    sources: Sources = Sources()
    vocabulary: int = Field(default=3072, ge=300, le=65_536)
    context: int = Field(default=512, ge=8, description="tokens in a training sequence")
    positions: int = Field(
        default=2304, ge=8, description="tokens a text may have; those beyond context are untrained"
    )
    target: Architecture = Architecture(layers=6, hidden=192, heads=6, kv_heads=2, intermediate=512)
    draft: Architecture = Architecture(layers=1, hidden=96, heads=3, kv_heads=1, intermediate=256)
    target_training: Training = Training(steps=500, peak_rate=4e-3)
    draft_training: Training = Training(steps=300, peak_rate=6e-3)
    distillation: Distillation = Distillation()
    distillation_training: Training = Training(steps=700, peak_rate=6e-3, hold=0.3)

    @model_validator(mode="after")
    def _lengths_fit(self) -> Recipe:
        if self.context > self.positions:
            raise ValueError("context must not be larger than positions")
        if self.distillation.longest_prefix >= self.context:
            raise ValueError("distillation.longest_prefix must be smaller than context")
        return self


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from JSON; fields left out keep their defaults.

    Raises:
        TrainingError: the file is not JSON, or a field has a value that is not allowed.
    """
    try:
        return Recipe.model_validate(json.loads(path.read_text("utf-8")))
    except json.JSONDecodeError as error:
        raise TrainingError(f"{path} is not JSON: {error}") from error
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: "
            + fault["msg"].removeprefix("Value error, ")
            for fault in error.errors()
        )
        raise TrainingError(f"{path}: {faults}") from error
