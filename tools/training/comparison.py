"""Distils one draft by every divergence and mixture of texts, and measures each result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from training import architecture, stages
from training.compute import Compute
from training.divergences import Divergence
from training.fitting import Budget
from training.recipe import Recipe
from training.workplace import Workplace

ON_POLICY_SHARES = (0.0, 0.5)


@dataclass(frozen=True)
class Distilled:
    """What one distillation came to: agreement by temperature, for each seed."""

    divergence: Divergence
    on_policy_share: float
    agreement: dict[float, list[float]]


@dataclass(frozen=True)
class Comparison:
    """Agreement by temperature before any distillation, and what each came to."""

    before: dict[float, float]
    after: list[Distilled]


def adopt(place: Workplace, target: Path) -> None:
    """Take a target that is trained already, with its tokenizer, into ``place``."""
    for folder in (place.model("target"), place.tokenizer):
        shutil.copytree(target, folder, dirs_exist_ok=True)
    for weights in place.tokenizer.glob("*.safetensors"):
        weights.unlink()
    stages.encode(place)


def compare(
    place: Workplace,
    recipe: Recipe,
    seeds: Sequence[int],
    budget: Budget,
    prompts: Path,
    compute: Compute,
    max_tokens: int = 128,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Distil the place's trained draft by each divergence, mixture and seed.

    Runs that are over already are only measured again. The draft that stays in ``place`` is the
    last one's.
    """

    def agreement() -> dict[float, float]:
        figures = stages.evaluate(place.root, prompts, None, compute.device, max_tokens=max_tokens)
        return {row.temperature: row.top_1 for row in figures.agreement}

    draft = stages.undistilled(place, recipe, compute)
    architecture.save(draft.cpu(), place.tokenizer, place.model("draft"))
    before = agreement()
    after = []
    for divergence, share in product(Divergence, ON_POLICY_SHARES):
        result = Distilled(divergence, share, {temperature: [] for temperature in before})
        update = {"divergence": divergence, "on_policy_share": share}
        chosen = recipe.distillation.model_copy(update=update)
        for seed in seeds:
            run = recipe.model_copy(update={"seed": seed, "distillation": chosen})
            stages.distil(place, run, budget, compute)
            for temperature, found in agreement().items():
                result.agreement[temperature].append(found)
            on_run()
        after.append(result)
    return Comparison(before, after)
