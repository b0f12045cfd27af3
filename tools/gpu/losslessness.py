"""Checks that every way to decode writes the target's own text, token by token."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.in_process import Loops
from bench.measurement import Task
from card.cache import Pool
from card.decoding import TargetLoop
from card.drafting import DraftLoop, make_drafters
from card.engines import Engine
from card.serving.geometry import pool_geometry
from card.settings import Settings, load_settings
from card.speculation.pacing import PACINGS, PLAIN
from gpu.models import Extent, Pair
from gpu.report import Check

TEMPERATURES = (0.0, 0.8)
SPECULATING = tuple(name for name, pacing in PACINGS.items() if pacing.queries)
_SEED = 7
_GAMMA = 5


def settings_of(pair: Pair, extent: Extent, **sections: Any) -> Settings:
    """Both loops in one process: neither takes the other for dead."""
    usual: dict[str, Any] = {
        "engine": "torch",
        "target": {"path": pair.target},
        "draft": {"path": pair.draft},
        "cache": {"slots": 1, "nodes": 256},
        "limits": {
            "context_tokens": extent.context,
            "prompt_tokens": extent.context - max(extent.tokens, extent.timed) - 1,
            "max_tokens": max(extent.tokens, extent.timed),
        },
        "serving": {"engine_timeout_s": 600},
    }
    return load_settings(**usual | sections)


def check_texts(pair: Pair, target: Engine, draft: Engine, extent: Extent) -> Iterator[Check]:
    """Greedy and sampled, with the two loops taking turns in this process."""
    settings = settings_of(pair, extent, speculation={"rows": 8, "depth": 12})
    with tempfile.TemporaryDirectory(prefix="card-gpu-") as home:
        pool = Pool.create(Path(home), os.getpid(), pool_geometry(settings))
        try:
            loops = Loops(
                pool,
                pair.tokenizer,
                lambda *_: TargetLoop(target, pool, settings),
                lambda _: DraftLoop(make_drafters(draft, settings), pool),
            )
            for temperature in TEMPERATURES:
                yield _check(loops, pair, temperature, extent)
        finally:
            pool.unlink()


def _check(loops: Loops, pair: Pair, temperature: float, extent: Extent) -> Check:
    name = f"lossless at temperature {temperature:g}" if temperature else "lossless, greedy"
    accepted = 0
    for prompt in pair.prompts(extent.texts):
        task = Task(prompt, temperature, _SEED, extent.tokens)
        alone = loops.complete(task, PLAIN, threads=1)
        for decoding in SPECULATING:
            found = loops.complete(task, decoding, threads=1, gamma=_GAMMA)
            accepted += found.accepted
            if found.tokens != alone.tokens:
                at = _first_difference(found.tokens or (), alone.tokens or ())
                detail = f"{decoding}, prompt {prompt.id}: token {at} differs"
                return Check(name, False, detail)
    detail = f"{extent.texts} texts of {extent.tokens} tokens, {len(SPECULATING)} ways each; "
    detail += f"{accepted} candidates accepted"
    return Check(name, accepted > 0, detail, {"accepted": float(accepted)})


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
