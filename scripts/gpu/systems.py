"""Tokens per second of every way to decode, each model as it would be served."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator
from dataclasses import dataclass

from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from card.settings import Settings
from gpu.models import Extent, Pair

_GREEDY = 0.0
_SEED = 0
_THREADS = 1

Complete = Callable[[Task], Measurement]


@dataclass(frozen=True)
class Speed:
    """One way to decode.

    step_ms     of the target's forward passes
    contention  step_ms by that of the target alone. Passes are padded to the same rows, so it is
                what a draft beside it on the same device costs
    equal       whether it wrote the autoregressive texts
    """

    system: str
    tokens_per_s: float
    tokens_per_step: float
    step_ms: float
    contention: float
    equal: bool


def systems_of(extent: Extent) -> list[str]:
    """What `compare` measures, in order."""
    return [
        "autoregressive",
        *(f"PEARL, γ = {gamma}" for gamma in extent.gammas),
        "CARD",
        *(f"draft-verify, γ = {gamma}" for gamma in extent.gammas),
    ]


def compare(pair: Pair, settings: Settings, extent: Extent) -> Generator[Speed, None, None]:
    """Autoregressive first, then every pacing, greedy, as `systems_of` says.

    Close it to end the draft's process early. Raises `EngineError`.
    """
    names = iter(systems_of(extent))
    both = InProcess(settings, pair.tokenizer)
    tasks = [Task(p, _GREEDY, _SEED, extent.timed) for p in pair.prompts(extent.texts)]
    with both.beside() as loops:
        alone = _run(_completing(loops, "autoregressive"), tasks)
        yield _speed(next(names), alone, alone)
        for gamma in extent.gammas:
            found = _run(_completing(loops, "pearl", gamma), tasks)
            yield _speed(next(names), found, alone)
        found = _run(_completing(loops, "card"), tasks)
        yield _speed(next(names), found, alone)
    with both.alternating() as alternate:
        for gamma in extent.gammas:
            loops = alternate(gamma, 1)
            found = _run(_completing(loops, "draft_then_verify", gamma), tasks)
            yield _speed(next(names), found, alone)


def _completing(loops: Loops, decoding: str, gamma: int = 1) -> Complete:
    return lambda task: loops.complete(task, decoding, threads=_THREADS, gamma=gamma)


def _run(complete: Complete, tasks: list[Task]) -> list[Measurement]:
    complete(tasks[0])  # shapes are captured when they are first met
    return [complete(task) for task in tasks]


def _speed(system: str, found: list[Measurement], alone: list[Measurement]) -> Speed:
    step_ms = _step_ms(found)
    return Speed(
        system,
        statistics.median(m.tokens_per_s for m in found),
        sum(m.generated for m in found) / sum(m.steps for m in found),
        step_ms,
        step_ms / _step_ms(alone),
        all(one.tokens == other.tokens for one, other in zip(found, alone, strict=True)),
    )


def _step_ms(found: list[Measurement]) -> float:
    """Mean of the target's forward passes behind the first token."""
    passes = [m.phases for m in found if m.phases is not None]
    return sum(phases.forward for phases in passes) / max(1, sum(p.steps for p in passes))
