"""Makes rows of completions, one per system, place and temperature, and ratios with intervals.

`benchmarks/README.md` says what each figure means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measurement import geometric_mean
from bench.runner import Completion, Contender
from card.speculation.pacing import PLAIN

ALL = "all"
_DESCRIBED = ("system", "where", "rows", "gamma", "streams")
_RESAMPLES, _SEED, _PERCENTILES = 2000, 0, (2.5, 97.5)

Row = dict[str, Any]
"""The figures of one contender at one temperature, as the JSON holds them. A figure that a
contender does not have, or that cannot be seen, is missing."""


def summarise(completions: Sequence[Completion]) -> list[Row]:
    """One row for each contender and temperature."""
    groups: dict[tuple[float, Contender], list[Completion]] = {}
    for completion in completions:
        key = completion.task.temperature, completion.contender
        groups.setdefault(key, []).append(completion)
    return [_row(who, temperature, done) for (temperature, who), done in groups.items()]


def _row(contender: Contender, temperature: float, done: Sequence[Completion]) -> Row:
    found = [completion.measurement for completion in done]
    speeds = [measured.tokens_per_s for measured in found]
    row: Row = {
        **{name: getattr(contender, name) for name in _DESCRIBED},
        "temperature": temperature,
        "texts": len(done),
        "tokens_per_s": median(speeds),
        "time_to_first_token_ms": median(1e3 * measured.first_token_s for measured in found),
    }
    if contender.where != "peer":
        equal = all(completion.equal for completion in done)
        row["texts_equal"] = equal if contender.lossless else None
        row["lossless"] = contender.lossless and equal
    if asked := [completion for completion in done if completion.task.prompt.answer]:
        right = (c.task.prompt.is_answered_by(c.measurement.text) for c in asked)
        row["right"] = sum(right)
    for name in found[0].latency:
        row[name] = median(measured.latency[name] for measured in found)
    total = Counter[str]()
    for measured in found:
        total.update(measured.counts)
    generated = sum(measured.generated for measured in found)
    seconds = sum(measured.seconds for measured in found)
    if total["later_steps"]:
        later_s = sum(measured.seconds - measured.first_token_s for measured in found)
        row["ms_per_step"] = 1e3 * later_s / total["later_steps"]
        for phase in ("query", "forward", "verify"):
            row[f"{phase}_ms"] = total[f"{phase}_ns"] / 1e6 / total["later_steps"]
    if total["steps"] and contender.system != PLAIN:
        row |= _speculation(total, generated, seconds)
    return row


def _speculation(total: Mapping[str, int], generated: int, seconds: float) -> Row:
    """The figures of candidates, over all texts together."""
    steps, passes = total["steps"], total["draft_passes"]
    row: Row = {
        "tokens_per_step": generated / steps,
        "foreign_share": total["foreign"] / generated,
    }
    if "draft_passes" in total:
        row["draft_idle_share"] = total["draft_waiting_ns"] / 1e9 / seconds
        row["draft_ms_per_token"] = total["draft_busy_ns"] / 1e6 / generated
    if total["queries"]:
        row["hit_rate"] = total["hits"] / total["queries"]
    if total["layers"]:
        row["rollback_share"] = total["lost_layers"] / total["layers"]
    if passes:
        row["draft_ms_per_pass"] = total["draft_busy_ns"] / 1e6 / passes
    return row


@dataclass(frozen=True)
class Question:
    """A ratio that is asked for: of a system to the fastest of those in `to`, all by
    `Contender.key`."""

    name: str
    of: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Ratio:
    """The answer at one temperature for one kind of prompts.

    kind   `all`, the first part of a category (`SpecBench`), or a whole one (`SpecBench/qa`)
    to     of those asked for, the system that was the fastest over all prompts
    value  geometric mean over the texts of the quotients of tokens/s; `low` and `high` are the
           ends of its 95 % interval
    """

    name: str
    temperature: float
    kind: str
    to: str
    texts: int
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def interval(quotients: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of their geometric mean: bootstrap over the texts."""
    logarithms: npt.NDArray[np.float64] = np.log(quotients)
    generator = np.random.default_rng(_SEED)
    drawn = generator.integers(0, len(logarithms), (_RESAMPLES, len(logarithms)))
    low, high = np.exp(np.percentile(logarithms[drawn].mean(axis=1), _PERCENTILES)).tolist()
    return low, high


def ratios(completions: Sequence[Completion], questions: Sequence[Question]) -> list[Ratio]:
    """The answers to all questions about systems that took part."""
    found: list[Ratio] = []
    for temperature in dict.fromkeys(c.task.temperature for c in completions):
        same = [c for c in completions if c.task.temperature == temperature]
        speeds: dict[str, dict[str, float]] = {}
        for c in same:
            speeds.setdefault(c.contender.key, {})[c.task.prompt.id] = c.measurement.tokens_per_s
        for question in questions:
            found += _answers(question, temperature, speeds, _kinds(same))
    return found


def _answers(
    question: Question,
    temperature: float,
    speeds: Mapping[str, Mapping[str, float]],
    kinds: Mapping[str, Sequence[str]],
) -> Iterator[Ratio]:
    """speeds  tokens/s by `Contender.key` and the prompt's id"""
    ours = speeds.get(question.of, {})
    rivals = [name for name in question.to if name in speeds]
    common = [prompt for prompt in ours if all(prompt in speeds[name] for name in rivals)]
    if not common or not rivals:
        return
    to = max(rivals, key=lambda name: geometric_mean([speeds[name][prompt] for prompt in common]))
    for kind, prompts in kinds.items():
        quotients = [ours[prompt] / speeds[to][prompt] for prompt in prompts if prompt in common]
        if quotients:
            low, high = interval(quotients)
            mean = geometric_mean(quotients)
            yield Ratio(question.name, temperature, kind, to, len(quotients), mean, low, high)


def _kinds(completions: Sequence[Completion]) -> dict[str, list[str]]:
    """Prompts by kind: all of them, then by the first part of their category, then by all of it."""
    found: dict[str, list[str]] = {ALL: []}
    for prompt in dict.fromkeys(c.task.prompt for c in completions):
        part = prompt.category.split("/")[0]
        for kind in dict.fromkeys((ALL, part, prompt.category)):
            if kind:
                found.setdefault(kind, []).append(prompt.id)
    return dict(sorted(found.items(), key=lambda item: (item[0] != ALL, item[0])))
