"""Finds the scale at which a pair agrees as asked, and writes both models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from aligned.agreement import Texts, measure_agreement
from aligned.shapes import PairShape
from aligned.weights import random_target, weigh_later_layers
from aligned.writing import write_draft, write_target

TOLERANCE = 0.015
_SMALLEST, _LARGEST = 1e-4, 1.0
_MOST_TRIALS = 24
_HELD_OUT_SEED = 1


class AlignmentError(RuntimeError):
    """No scale reaches the requested agreement."""


@dataclass(frozen=True)
class Alignment:
    """What was reached. `held_out`: the agreement on texts that the search did not see."""

    asked: float
    agreement: float
    held_out: float
    scale: float
    tokens: int


def make_pair(
    shape: PairShape,
    asked: float,
    output: Path,
    tokenizer: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | None = None,
    texts: Texts | None = None,
) -> Alignment:
    """Write `output/target` and `output/draft` with the agreement `asked`, and `output/pair.json`.

    Only one model's weights are in memory at a time, plus one shard while it is written.

    Raises:
        AlignmentError: the agreement is not reached within the trials.
    """
    texts = texts or Texts()
    target = random_target(shape, seed, dtype, device or torch.device("cpu"))

    def agreement_at(scale: float) -> float:
        weigh_later_layers(target, shape, seed, scale)
        return measure_agreement(target, shape.draft_layers, texts, seed)

    scale, reached = find_scale(agreement_at, asked)
    held_out = measure_agreement(target, shape.draft_layers, texts, seed + _HELD_OUT_SEED)
    alignment = Alignment(asked, reached, held_out, scale, texts.every)
    write_target(target, tokenizer, output / "target")
    write_draft(target, shape, tokenizer, output / "draft")
    content = {
        "note": "random weights: compute and memory traffic are those of a real model, text is not",
        **asdict(alignment),
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": asdict(shape),
    }
    (output / "pair.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return alignment


def find_scale(agreement_at: Callable[[float], float], asked: float) -> tuple[float, float]:
    """Bisect the logarithm of the scale; the last scale that was tried is the one returned.

    The more the later layers contribute the less the two agree. What is measured is a count over a
    few texts, so near the end it need not fall evenly: the search ends within `TOLERANCE`.
    """
    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    for _ in range(_MOST_TRIALS):
        middle = (low + high) / 2
        found = agreement_at(math.exp(middle))
        if abs(found - asked) <= TOLERANCE:
            return math.exp(middle), found
        low, high = (middle, high) if found > asked else (low, middle)
    raise AlignmentError(
        f"no scale of the later layers between {_SMALLEST:g} and {_LARGEST:g} gives an agreement "
        f"within {TOLERANCE:g} of {asked:g}; the last gave {found:.3f}: measure longer texts or "
        "choose another seed"
    )
