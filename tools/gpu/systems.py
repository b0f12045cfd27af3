"""Tokens per second of every way to decode, each model as it would be served."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from bench.in_process import InProcess, Loops, slot_request
from bench.measurement import Task
from card.cache import Finish
from card.settings import Settings
from gpu.models import Extent, Pair

_SEED = 0
_THREADS = 1


@dataclass(frozen=True)
class Demand:
    """The demand: number of concurrent streams, and the temperature."""

    streams: int = 1
    temperature: float = 0.0

    def __str__(self) -> str:
        streams = "one stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{streams}, " + (
            f"temperature {self.temperature:g}" if self.temperature else "greedy"
        )


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
    loops.announce()
    opened = []
    for index, task in enumerate(tasks):
        slot, session_id = loops.pool.card_slot(index), loops.pool.new_session_id()
        slot.open(slot_request(task, decoding, gamma), session_id)
        opened.append((slot, session_id))
    started = time.perf_counter()
    while not all(slot.committed(session_id) for slot, session_id in opened):
        loops.step()
    before = replace(loops.times)
    while any(slot.finish(session_id) is Finish.RUNNING for slot, session_id in opened):
        loops.step()
    seconds, times = time.perf_counter() - started, replace(loops.times)
    tokens, steps = [], 0
    for slot, session_id in opened:
        if slot.finish(session_id) is not Finish.LENGTH:
            raise RuntimeError("the target gave up on a text")
        tokens.append(tuple(slot.output(0, slot.committed(session_id)).tolist()))
        steps += slot.counters().steps
        slot.close()
        while not slot.reclaim():
            loops.step()
    forward_ms = (times.forward - before.forward) / 1e6
    return _Run(tokens, seconds, steps, times.steps - before.steps, forward_ms)


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
