"""Milliseconds of a step against the time that reading its bytes takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from card.engines import SequenceTokens
from gpu.models import CheckedEngine, Extent

_BEHIND = 256
"""Positions that a timed step attends to, or half the context."""


@dataclass(frozen=True)
class StepCost:
    """A pass of one session, its logits read by the host.

    floor_ms  bytes of weights and of the positions behind, over the measured copy bandwidth
    """

    model: str
    rows: int
    ms: float
    floor_ms: float
    bandwidth_gb_s: float


def copy_bandwidth_gb_s(device: torch.device, size: int) -> float:
    """Bytes read and written per second by the fastest of several copies of `size` bytes."""
    source = torch.ones(size // 4, device=device)
    copy = torch.empty_like(source)
    seconds = min(_seconds(lambda: copy.copy_(source), device) for _ in range(8))
    return 2 * source.nbytes / seconds / 1e9


def step_costs(model: str, engine: CheckedEngine, extent: Extent) -> Iterator[StepCost]:
    """The median of many steps for each number of rows."""
    bandwidth = copy_bandwidth_gb_s(engine.device, extent.copied)
    behind = min(_BEHIND, extent.context // 2)
    floor_ms = 1e3 * (_weight_bytes(engine) + _kv_bytes(engine, behind)) / (bandwidth * 1e9)
    session = engine.open_session()
    for start in range(0, behind, 64):
        chunk = [1] * min(64, behind - start)
        engine.forward([SequenceTokens(session, chunk, logits=0)])
        engine.commit_kv(session, range(len(chunk)))
    for rows in extent.rows:

        def step(rows: int = rows) -> None:
            engine.forward([SequenceTokens(session, [1] * rows)])
            engine.commit_kv(session, [])

        step()
        ms = 1e3 * statistics.median(_seconds(step, engine.device) for _ in range(extent.rounds))
        yield StepCost(model, rows, ms, floor_ms, bandwidth)
    engine.close_session(session)


def _weight_bytes(engine: CheckedEngine) -> int:
    """Of the linear layers; of the embedding a step reads a few rows."""
    a = engine.architecture
    attention = a.head_size * (2 * a.heads + 2 * a.kv_heads)
    weights = a.layers * a.hidden * (attention + 3 * a.intermediate) + a.hidden * a.vocabulary
    return weights * engine.dtype.itemsize


def _kv_bytes(engine: CheckedEngine, positions: int) -> int:
    a = engine.architecture
    return 2 * a.layers * a.kv_heads * a.head_size * positions * engine.dtype.itemsize


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
