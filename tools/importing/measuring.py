"""Measures a draft's agreement with its target, and the cost of their passes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from bench.prompts import Prompt
from card.engines.processor import resolve_dtype
from card.loading import load_engine
from card.sampling import SamplingParameters
from card.settings import CacheSettings, Settings
from importing.agreement import Ranks, ranks_along
from importing.checks import Model
from writing import write_alone

LOADED_BYTES_PER_BYTE = 2.0
"""Memory at load for a byte of weights: they are read, and prepared for the processor."""

_KEPT_BYTES = {"bfloat16": 2, "float32": 4, "int8": 1, "int4": 1}
_STORED_BYTES = 2
"""Bytes of one weight in `Model.bytes`."""


@dataclass(frozen=True)
class Measured:
    """The measurements of a pair on this machine.

    ranks            the draft's, of all tokens that the target wrote
    *_costs_ms       milliseconds of a pass by its rows, each model alone on the machine
    """

    ranks: Ranks
    target_costs_ms: Mapping[int, float]
    draft_costs_ms: Mapping[int, float]


def why_not_measured(draft: Model, target: Model, settings: Settings) -> str | None:
    """Why the pair cannot be measured here; None if it can."""
    unknown = [model.path.name for model in (draft, target) if model.obstacle is not None]
    if unknown:
        return f"our own engines do not know the family of {' and '.join(unknown)}"
    needed = sum(
        model.bytes
        * LOADED_BYTES_PER_BYTE
        * _KEPT_BYTES[resolve_dtype(chosen.dtype)]
        / _STORED_BYTES
        for model, chosen in ((draft, settings.draft), (target, settings.target))
    )
    available = psutil.virtual_memory().available
    if needed <= available:
        return None
    return f"both models need about {_gib(needed)} of memory, {_gib(available)} are available"


def measure(
    settings: Settings,
    prompts: Sequence[Prompt],
    max_tokens: int,
    temperature: float,
    on_text: Callable[[], None],
) -> Measured:
    """Let the target write `max_tokens` after each prompt and the draft read along.

    Prompt i is sampled with seed i. Raises `EngineError` if a model cannot be
    loaded after all.
    """
    alone = settings.model_copy(update={"cache": CacheSettings(slots=1)})
    target = load_engine(alone, "target")
    draft = load_engine(alone, "draft")
    ranks: Ranks = []
    for seed, prompt in enumerate(prompts):
        # On the wire a temperature has 32 bits.
        parameters = SamplingParameters(temperature=float(np.float32(temperature)), seed=seed)
        written = write_alone(target, prompt.tokens, parameters, max_tokens)
        ranks += ranks_along(draft, prompt.tokens, written, parameters)
        on_text()
    return Measured(ranks, target.row_costs_ms, draft.row_costs_ms)


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
