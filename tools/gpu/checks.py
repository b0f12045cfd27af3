"""Is it right: logits, rows that do not influence each other, texts that speculation keeps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.in_process import Loops
from bench.measurement import Task
from card.cache import Pool
from card.decoding import TargetLoop
from card.drafting import DraftLoop, make_drafters
from card.engines import Engine, SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.interface import BLOCK
from card.engines.options import Dtype, EngineOptions
from card.engines.sessions import EXTENT_MULTIPLE
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.engine import TorchEngine
from card.serving.geometry import pool_geometry
from card.settings import Settings, load_settings
from card.speculation.pacing import PACINGS, PLAIN
from gpu.models import CheckedEngine, Extent, Pair, load_target, read, text_of
from gpu.report import Check

TOLERANCE: dict[str, float] = {"float32": 2e-4, "bfloat16": 0.075, "float16": 0.01}
"""Most that a logit may differ from float32 on a processor, as a share of the largest logit: the
larger what is summed, the further off it is rounded."""

LEAST_AGREEMENT: dict[str, float] = {"float32": 0.99, "bfloat16": 0.9, "float16": 0.97}
"""Share of positions with the same first choice; ties and near-ties may fall either way."""

_AROUND = 6
"""Rows on each side of a border between extents."""

TEMPERATURES = (0.0, 0.8)
SPECULATING = tuple(name for name, pacing in PACINGS.items() if pacing.queries)
_SEED = 7
_GAMMA = 5


def check_logits(pair: Pair, device: str, extent: Extent) -> Iterator[Check]:
    """The target's logits on the device against those of float32 on a processor."""
    tokens = text_of(pair, extent.read)
    options = EngineOptions(extent.context, sessions=1, dtype="float32", threads=1)
    expected = read(TorchEngine.load(pair.target, options), tokens, repeat(64))
    wanted: tuple[Dtype, ...] = ("float32", "auto") if device == "cpu" else ("bfloat16", "float16")
    for dtype in wanted:
        engine = load_target(pair, device, dtype, extent.context)
        name = str(engine.dtype).removeprefix("torch.")
        yield compared(name, read(engine, tokens, repeat(64)), expected)


def compared(name: str, found: NDArray[np.float32], expected: NDArray[np.float32]) -> Check:
    """Logits [positions, vocabulary] in the dtype `name` against those of float32."""
    worst = float(np.abs(found - expected).max())
    allowed = TOLERANCE[name] * float(np.abs(expected).max())
    agreed = float((found.argmax(-1) == expected.argmax(-1)).mean())
    return Check(
        f"logits in {name}",
        worst <= allowed and agreed >= LEAST_AGREEMENT[name],
        f"at most {worst:.2g} from float32 on a processor (allowed {allowed:.2g}), "
        f"same first choice at {agreed:.1%} of {len(found)} positions",
        {"max_abs_difference": worst, "agreement": agreed},
    )


def check_rows(pair: Pair, device: str, extent: Extent) -> tuple[Check, CheckedEngine]:
    """The self-check that serving makes at load, and every border between extents; the engine."""
    engine = make_row_invariant(load_target(pair, device, "auto", extent.context))
    if not engine.row_invariant:
        detail = "the self-check found rows that change with their pass"
        return Check("row invariance", False, detail), engine
    borders = _borders(extent)
    wrong = [
        f"at the border of {at} positions" for at in borders if _border_shows(engine, pair, at)
    ]
    if not _read_behind_kept_text(engine, pair):
        wrong.append("behind text with kept KV")
    on_kernels = isinstance(engine, CapturedEngine)
    detail = f"{'kernels' if on_kernels else 'the eager decoder'}, padded to "
    detail += f"{engine.options.row_multiple} rows; the same bits on both sides of "
    detail += f"{', '.join(map(str, borders))} positions, and behind text with kept KV"
    if wrong:
        detail = f"other bits {', '.join(wrong)}"
    multiple = float(engine.options.row_multiple)
    figures = {"kernels": float(on_kernels), "row_multiple": multiple}
    return Check("row invariance", not wrong, detail, figures), engine


def _borders(extent: Extent) -> list[int]:
    """Where the places that are looked at double."""
    found = [EXTENT_MULTIPLE]
    while 2 * found[-1] + _AROUND <= extent.context:
        found.append(2 * found[-1])
    return found


def _border_shows(engine: CheckedEngine, pair: Pair, border: int) -> bool:
    """Whether rows around the border have other bits one by one than in one pass."""
    tokens = text_of(pair, border + _AROUND)
    before = [64] * ((border - _AROUND) // 64) + [(border - _AROUND) % 64]
    before = [chunk for chunk in before if chunk]
    one = read(engine, tokens, [*before, *[1] * (2 * _AROUND)])[-2 * _AROUND :]
    many = read(engine, tokens, [*before, 2 * _AROUND])[-2 * _AROUND :]
    return one.tobytes() != many.tobytes()


def _read_behind_kept_text(engine: CheckedEngine, pair: Pair) -> bool:
    """Whether rows behind text that was kept are as if it had been read."""
    keeps = engine.reconfigured(replace(engine.options, sessions=2, kept_tokens=3 * BLOCK))
    tokens = text_of(pair, BLOCK + 8)
    expected = read(keeps, tokens, [BLOCK, 8])[BLOCK:]
    for text in (text_of(pair, 2 * BLOCK)[BLOCK:], tokens):  # so that it is not kept where it stood
        session = keeps.open_session()
        keeps.forward([SequenceTokens(session, text[:BLOCK], logits=0)])
        keeps.commit_kv(session, range(BLOCK))
        keeps.remember(session, text)
        keeps.close_session(session)
    keeps.open_session()  # and comes to stand in another lane
    session = keeps.open_session(tokens)
    if keeps.length(session) != BLOCK:
        return False
    (logits,) = keeps.forward([SequenceTokens(session, tokens[BLOCK:])])
    return np.stack([logits.row(row) for row in range(8)]).tobytes() == expected.tobytes()


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
