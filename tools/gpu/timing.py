"""How fast it is: a step of a model, and every way to decode with both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch

from bench.in_process import InProcess, Loops
from bench.measurement import Task
from card.engines import SequenceTokens
from card.settings import Settings
from gpu.models import CheckedEngine, Extent, Pair
from writing import read

_BEHIND = 256
"""Positions that a timed step attends to, or half the context."""
_SEED, _THREADS = 0, 1
_USUAL_PRODUCT_S = 1e-3
"""Seconds of the product in `slowness` on a processor for which the usual limits suffice."""


def slowness(device: torch.device) -> float:
    """How much longer work takes here than the usual limits allow for, at least 1: the time of a
    product of matrices on one thread of a processor, as busy as it is now. A GPU has the usual
    limits."""
    if device.type != "cpu":
        return 1.0
    torch.set_num_threads(1)
    rows, weights = torch.ones(8, 1024), torch.ones(1024, 4096)
    taken_s = statistics.median(_seconds(lambda: rows @ weights, device) for _ in range(31))
    return max(1.0, taken_s / _USUAL_PRODUCT_S)


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


def step_costs(model: str, engine: CheckedEngine, extent: Extent) -> Iterator[StepCost]:
    """The median of many steps for each number of rows."""
    bandwidth = _copy_bandwidth_gb_s(engine.device, extent.copied)
    behind = min(_BEHIND, extent.context // 2)
    floor_ms = 1e3 * _bytes_read(engine, behind) / (bandwidth * 1e9)
    session = engine.open_session()
    read(engine, session, [1] * behind)
    for rows in extent.rows:

        def step(rows: int = rows) -> None:
            engine.forward([SequenceTokens(session, [1] * rows)])
            engine.commit_kv(session, [])

        step()
        ms = 1e3 * statistics.median(_seconds(step, engine.device) for _ in range(extent.rounds))
        yield StepCost(model, rows, ms, floor_ms, bandwidth)
    engine.close_session(session)


def _copy_bandwidth_gb_s(device: torch.device, size: int) -> float:
    """Bytes read and written per second by the fastest of several copies of `size` bytes."""
    source = torch.ones(size // 4, device=device)
    copy = torch.empty_like(source)
    seconds = min(_seconds(lambda: copy.copy_(source), device) for _ in range(8))
    return 2 * source.nbytes / seconds / 1e9


def _bytes_read(engine: CheckedEngine, positions: int) -> int:
    """Bytes of the linear layers and the KV cache. A step reads few rows of the embedding."""
    a = engine.architecture
    attention = a.head_size * (2 * a.heads + 2 * a.kv_heads)
    weights = a.layers * a.hidden * (attention + 3 * a.intermediate) + a.hidden * a.vocabulary
    kv = 2 * a.layers * a.kv_heads * a.head_size * positions
    return (weights + kv) * engine.dtype.itemsize


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Demand:
    """The demand: number of concurrent streams, and the temperature."""

    streams: int = 1
    temperature: float = 0.0

    def __str__(self) -> str:
        streams = "one stream" if self.streams == 1 else f"{self.streams} streams"
        sampled = f"temperature {self.temperature:g}" if self.temperature else "greedy"
        return f"{streams}, {sampled}"


@dataclass(frozen=True)
class Speed:
    """One way to decode.

    demand        as `Demand` says it
    tokens_per_s  of all streams together
    step_ms       of the target's forward passes behind the first tokens
    contention    step_ms by that of the target alone. Passes are padded to the same rows, so it is
                  what a draft beside it on the same device costs
    equal         whether it wrote the autoregressive texts
    """

    demand: str
    system: str
    tokens_per_s: float
    tokens_per_step: float
    step_ms: float
    contention: float
    equal: bool


@dataclass(frozen=True)
class _Run:
    """What all streams wrote at once; `steps` are of every stream, `passes` and their milliseconds
    of the target behind the first tokens."""

    tokens: list[tuple[int, ...]]
    seconds: float
    steps: int
    passes: int
    forward_ms: float

    @property
    def generated(self) -> int:
        return sum(map(len, self.tokens))


def compare(
    pair: Pair,
    settings: Settings,
    extent: Extent,
    demands: Sequence[Demand],
    shapes: Sequence[str] = ("chain",),
) -> Generator[Speed, None, None]:
    """Speeds on a target that allows queries of several paths.

    shapes  of queries; of the first one autoregressive decoding comes first for every demand

    Close it to end the draft's process early. Raises `EngineError`.
    """
    both = InProcess(settings, pair.tokenizer)
    alone: dict[Demand, list[_Run]] = {}
    gamma = extent.gamma

    def measured(loops: Loops, demand: Demand, system: str, decoding: str, gamma: int = 1) -> Speed:
        prompts = pair.prompts(max(extent.texts, demand.streams))
        tasks = [Task(p, demand.temperature, _SEED, extent.timed) for p in prompts]
        at_once = demand.streams
        groups = [tasks[at : at + at_once] for at in range(0, len(tasks) - at_once + 1, at_once)]
        _write(loops, groups[0], decoding, gamma)  # shapes are captured when they are first met
        runs = [_write(loops, group, decoding, gamma) for group in groups]
        return _speed(demand, system, runs, alone.setdefault(demand, runs))

    for shape in shapes:
        suffix = "" if shape == shapes[0] else f", {shape}"
        with both.beside(query=shape) as loops:
            for demand in demands:
                if not suffix:
                    yield measured(loops, demand, "autoregressive", "autoregressive")
                    yield measured(loops, demand, f"PEARL, γ = {gamma}", "pearl", gamma)
                yield measured(loops, demand, f"CARD{suffix}", "card")
                yield measured(loops, demand, f"auto{suffix}", "auto")
        with both.alternating(query=shape) as alternate:
            loops = alternate(gamma, 1)
            for demand in demands:
                name = f"draft-verify, γ = {gamma}{suffix}"
                yield measured(loops, demand, name, "draft_then_verify", gamma)


def _write(loops: Loops, tasks: list[Task], decoding: str, gamma: int) -> _Run:
    """All texts at once, from the first pass of the first prompt on."""
    loops.use(_THREADS, decoding)
    texts, counts = loops.write(tasks, len(tasks), decoding, gamma)
    read = max((text.prefilled for text in texts), key=lambda times: times.steps)
    return _Run(
        [text.tokens for text in texts],
        max(text.commits[-1][0] for text in texts),
        counts["steps"],
        loops.times.steps - read.steps,
        (loops.times.forward - read.forward) / 1e6,
    )


def _speed(demand: Demand, system: str, runs: list[_Run], alone: list[_Run]) -> Speed:
    step_ms, alone_ms = (
        sum(run.forward_ms for run in some) / max(1, sum(run.passes for run in some))
        for some in (runs, alone)
    )
    return Speed(
        str(demand),
        system,
        statistics.median(run.generated / run.seconds for run in runs),
        sum(run.generated for run in runs) / sum(run.steps for run in runs),
        step_ms,
        step_ms / alone_ms,
        all(one.tokens == other.tokens for one, other in zip(runs, alone, strict=True)),
    )
