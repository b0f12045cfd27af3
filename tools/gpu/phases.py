"""The phases of a run; each yields its findings as they come."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from card.settings import REPOSITORY_ROOT
from gpu.checks import check_logits, check_rows, check_texts, settings_of
from gpu.models import Extent, Pair, load_draft, load_target
from gpu.report import Check, Found, Timed
from gpu.timing import Demand, compare, step_costs

_TOKENIZER = REPOSITORY_ROOT / "tests/pair/draft"
"""Every checkout has it, and it has fewer ids than any of the shapes."""
_UNREAL = "random weights: compute and memory traffic are real, the text is not"
AGREEMENT = 0.8
"""Wanted agreement of the random pair."""


@dataclass(frozen=True)
class Job:
    """The inputs of a phase.

    pair     the pair of the checkout
    scratch  folder for the random pair, which all phases share
    """

    pair: Pair
    device: str
    draft_device: str
    extent: Extent
    scratch: Path


def random_pair(job: Job) -> Pair:
    """The pair of random weights, which the first phase that needs it makes. Raises
    `aligned.AlignmentError`."""
    folder, shape = job.scratch / "pair", job.extent.shape
    made = folder / "pair.json"
    if not made.exists():
        # transformers takes seconds to import, and only this needs it.
        from transformers.utils.logging import disable_progress_bar

        from aligned import SHAPES, make_pair

        disable_progress_bar()
        shutil.rmtree(folder, ignore_errors=True)
        device = torch.device(job.device)
        make_pair(SHAPES[shape], AGREEMENT, folder, _TOKENIZER, device=device)
        _forget(job.device)
    found = json.loads(made.read_text(encoding="utf-8"))
    name = f"{shape}, agreement {found['held_out']:.2f} (asked {AGREEMENT:g}), {_UNREAL}"
    return Pair(name, folder / "target", folder / "draft")


def check_correctness(job: Job) -> Iterator[Found]:
    """Logits, rows that do not influence each other, and texts that speculation does not change."""
    yield from check_logits(job.pair, job.device, job.extent)
    rows, target = check_rows(job.pair, job.device, job.extent)
    yield rows
    draft = load_draft(job.pair, job.draft_device, "auto", job.extent.context)
    yield from check_texts(job.pair, target, draft, job.extent)


def time_random_pair(job: Job) -> Iterator[Found]:
    """Steps against the floor, and every way to decode: one stream, greedy."""
    pair = random_pair(job)
    for model, load in (("target", load_target), ("draft", load_draft)):
        engine = load(pair, job.device, "auto", job.extent.context)
        for step in step_costs(model, engine, job.extent):
            yield Timed(pair.name, "steps", asdict(step))
        del engine
        _forget(job.device)
    yield from _time_systems(job, pair, Demand(), shapes=("chain", "subtree"))


def time_demands(job: Job) -> Iterator[Found]:
    """Every way to decode, for many streams and sampled."""
    demands = Demand(streams=job.extent.streams), Demand(temperature=0.8)
    yield from _time_systems(job, random_pair(job), *demands)


PHASES: dict[str, Callable[[Job], Iterator[Found]]] = {
    "correctness": check_correctness,
    "8b": time_random_pair,
    "8b-more": time_demands,
}
"""Most wanted first. Those of ``8b`` look at a random pair of that shape, and on a processor at a
tiny one."""


def _time_systems(
    job: Job, pair: Pair, *demands: Demand, shapes: Sequence[str] = ("chain",)
) -> Iterator[Found]:
    """Time every system, and check that all wrote the same texts."""
    settings = settings_of(
        pair,
        job.extent,
        target={"path": pair.target, "device": job.device},
        draft={"path": pair.draft, "device": job.draft_device},
        speculation={"query": "subtree", "branches": 8},
        cache={"slots": max(demand.streams for demand in demands), "nodes": 256},
        serving={"engine_timeout_s": 30},
    )
    differing = []
    with closing(compare(pair, settings, job.extent, demands, shapes)) as measured:
        for speed in measured:
            yield Timed(pair.name, "speeds", asdict(speed))
            if not speed.equal:
                differing.append(f"{speed.system} ({speed.demand})")
    detail = f"{', '.join(differing)} wrote another text" if differing else "all alike"
    yield Check(f"texts of {pair.name}", not differing, detail)
    _forget(job.device)


def _forget(device: str) -> None:
    """Give the device's memory back, for another process or model."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
