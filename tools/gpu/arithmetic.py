"""Is the arithmetic right, and does no row influence another?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from card.engines import SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.layout import EXTENT_MULTIPLE
from card.engines.options import Dtype, EngineOptions
from card.engines.prefix_cache import BLOCK
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.engine import TorchEngine
from gpu.models import CheckedEngine, Extent, Pair, load_target, read, text_of
from gpu.report import Check

TOLERANCE: dict[str, float] = {"float32": 2e-4, "bfloat16": 0.075, "float16": 0.01}
"""Most that a logit may differ from float32 on a processor, as a share of the largest logit: the
larger what is summed, the further off it is rounded."""

LEAST_AGREEMENT: dict[str, float] = {"float32": 0.99, "bfloat16": 0.9, "float16": 0.97}
"""Share of positions with the same first choice; ties and near-ties may fall either way."""

_SHARING = 8
"""Sessions that read the same text in the same passes."""

_AROUND = 6
"""Rows on each side of a border between extents."""


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
    crossed, differing = _cross_borders(engine, pair, extent)
    alike = _share_a_pass(engine, pair)
    kept = _read_behind_kept_text(engine, pair)
    on_kernels = isinstance(engine, CapturedEngine)
    by = "kernels" if on_kernels else "the eager decoder"
    detail = f"{by}, padded to {engine.options.row_multiple} rows; the same bits on both sides of "
    detail += f"{', '.join(map(str, crossed))} positions, in a pass of {_SHARING} sessions, and "
    detail += "behind text with kept KV"
    if differing:
        detail = f"other bits at the border of {', '.join(map(str, differing))} positions"
    elif not alike:
        detail = f"other bits in a pass that {_SHARING} sessions share"
    elif not kept:
        detail = "other bits behind text with kept KV"
    figures = {
        "kernels": float(on_kernels),
        "row_multiple": float(engine.options.row_multiple),
    }
    return Check("row invariance", alike and kept and not differing, detail, figures), engine


def _share_a_pass(engine: CheckedEngine, pair: Pair) -> bool:
    """Whether each of several sessions reads as if it were alone."""
    many = engine.reconfigured(replace(engine.options, sessions=_SHARING))
    tokens = text_of(pair, 48)
    expected = read(many, tokens, [16, 16, 16])
    sessions = [many.open_session() for _ in range(_SHARING)]
    for start in range(0, 48, 8):
        batch = [SequenceTokens(session, tokens[start : start + 8]) for session in sessions]
        for session, logits in zip(sessions, many.forward(batch), strict=True):
            rows = np.stack([logits.row(row) for row in range(8)])
            if rows.tobytes() != expected[start : start + 8].tobytes():
                return False
            many.commit_kv(session, range(8))
    return True


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


def _cross_borders(
    engine: CheckedEngine, pair: Pair, extent: Extent
) -> tuple[list[int], list[int]]:
    """Where the places looked at double: all such borders, and those that changed a bit."""
    borders = []
    border = EXTENT_MULTIPLE
    while border + _AROUND <= extent.context:
        borders.append(border)
        border *= 2
    differing = []
    for border in borders:
        tokens = text_of(pair, border + _AROUND)
        before = [64] * ((border - _AROUND) // 64) + [(border - _AROUND) % 64]
        before = [chunk for chunk in before if chunk]
        one = read(engine, tokens, [*before, *[1] * (2 * _AROUND)])[-2 * _AROUND :]
        many = read(engine, tokens, [*before, 2 * _AROUND])[-2 * _AROUND :]
        if one.tobytes() != many.tobytes():
            differing.append(border)
    return borders, differing
