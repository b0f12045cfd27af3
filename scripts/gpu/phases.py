"""The phases of a run: each yields what it finds as soon as it is found."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gpu.arithmetic import check_logits, check_rows
from gpu.losslessness import check_texts, settings_of
from gpu.models import Extent, Pair, load_draft, load_target
from gpu.pairs import AGREEMENTS, aligned_pair
from gpu.report import Check, Found, Timed
from gpu.steps import step_costs
from gpu.systems import compare


@dataclass(frozen=True)
class Job:
    """What a phase is to look at.

    pair     for the phases that make none themselves
    scratch  folder for random pairs, emptied behind the phase
    """

    pair: Pair
    device: str
    draft_device: str
    extent: Extent
    scratch: Path


def check_correctness(job: Job) -> Iterator[Found]:
    """Logits, rows that do not influence each other, and texts that speculation does not change."""
    yield from check_logits(job.pair, job.device, job.extent)
    rows, target = check_rows(job.pair, job.device, job.extent)
    yield rows
    draft = load_draft(job.pair, job.draft_device, "auto", job.extent.context)
    yield from check_texts(job.pair, target, draft, job.extent)


def time_steps(job: Job) -> Iterator[Found]:
    """Milliseconds of a step of each model."""
    yield from _time_steps(job, job.pair)


def time_systems(job: Job) -> Iterator[Found]:
    """Tokens per second of every way to decode."""
    yield from _time_systems(job, job.pair)


def time_random_pairs(shape: str, job: Job) -> Iterator[Found]:
    """Steps and every way to decode, for pairs of this shape at several agreements."""
    for agreement in AGREEMENTS:
        with aligned_pair(shape, agreement, torch.device(job.device), job.scratch) as pair:
            # A step costs the same whatever the weights are.
            if agreement == AGREEMENTS[0]:
                yield from _time_steps(job, pair)
            yield from _time_systems(job, pair)


PHASES: dict[str, Callable[[Job], Iterator[Found]]] = {
    "correctness": check_correctness,
    "steps": time_steps,
    "systems": time_systems,
    "8b": partial(time_random_pairs, "1b-8b"),
    "32b": partial(time_random_pairs, "3b-32b"),
    "tiny": partial(time_random_pairs, "tiny"),
}
USUAL = ("correctness", "steps", "systems")
"""Those of the bundled pair."""


def _time_steps(job: Job, pair: Pair) -> Iterator[Found]:
    for model, load in (("target", load_target), ("draft", load_draft)):
        engine = load(pair, job.device, "auto", job.extent.context)
        for step in step_costs(model, engine, job.extent):
            yield Timed(pair.name, step)
        del engine
        _forget(job.device)


def _time_systems(job: Job, pair: Pair) -> Iterator[Found]:
    """What they wrote is checked too."""
    settings = settings_of(
        pair,
        job.extent,
        target={"path": pair.target, "device": job.device},
        draft={"path": pair.draft, "device": job.draft_device},
        serving={"engine_timeout_s": 30},
    )
    differing = []
    with closing(compare(pair, settings, job.extent)) as measured:
        for speed in measured:
            yield Timed(pair.name, speed)
            if not speed.equal:
                differing.append(speed.system)
    detail = f"{', '.join(differing)} wrote another text" if differing else "all alike"
    yield Check(f"texts of {pair.name}", not differing, detail)
    _forget(job.device)


def _forget(device: str) -> None:
    """Give the device's memory back, for another process or model."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
