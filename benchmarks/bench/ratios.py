"""How much faster one system is than another: ratios with intervals, by kind of prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.contest import Completion
from bench.measurement import geometric_mean

ALL = "all"
_RESAMPLES, _SEED = 2000, 0
_PERCENTILES = (2.5, 97.5)

Speeds = Mapping[str, float]
"""Tokens/s of one system at one temperature, by the prompt's id."""


@dataclass(frozen=True)
class Question:
    """A ratio that is asked for: of a system to the fastest of those in `to`. What is behind
    `@` says where it runs, if that is not in process or, of a peer, its own process."""

    name: str
    of: str
    to: tuple[str, ...]
    by_category: bool = False


QUESTIONS = (
    Question("our autoregressive / llama.cpp plain", "autoregressive", ("llama_cpp",), True),
    Question("our autoregressive / OpenVINO GenAI plain", "autoregressive", ("openvino",)),
    Question("CARD / autoregressive", "card", ("autoregressive",), True),
    Question("CARD / draft-then-verify", "card", ("draft_then_verify",)),
    Question("CARD / PEARL", "card", ("pearl",)),
    Question(
        "CARD / llama.cpp's best",
        "card",
        ("llama_cpp", "llama_cpp_prompt_lookup", "llama_cpp_draft"),
        True,
    ),
    Question("CARD / OpenVINO GenAI's best", "card", ("openvino", "openvino_speculative"), True),
    Question("CARD through gRPC / in process", "card@grpc", ("card",)),
    Question("CARD / the draft model alone", "card", ("draft_alone",)),
    Question(
        "CARD with an unrelated draft / autoregressive",
        "card_unrelated_draft",
        ("autoregressive",),
    ),
)


@dataclass(frozen=True)
class Ratio:
    """The answer at one temperature for one kind of prompts.

    kind   `all`, the first part of a category (`SpecBench`), or a whole one (`SpecBench/qa`)
    to     the system that was the fastest of those asked for, over all prompts
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


def interval(quotients: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of their geometric mean: bootstrap over the texts."""
    logarithms: npt.NDArray[np.float64] = np.log(quotients)
    generator = np.random.default_rng(_SEED)
    drawn = generator.integers(0, len(logarithms), (_RESAMPLES, len(logarithms)))
    low, high = np.exp(np.percentile(logarithms[drawn].mean(axis=1), _PERCENTILES)).tolist()
    return low, high


def ratios(
    completions: Sequence[Completion], questions: Sequence[Question] = QUESTIONS
) -> list[Ratio]:
    """The answers to all questions whose systems took part."""
    found: list[Ratio] = []
    for temperature in dict.fromkeys(c.task.temperature for c in completions):
        same = [c for c in completions if c.task.temperature == temperature]
        speeds, kinds = _speeds(same), _kinds(same)
        for question in questions:
            rivals = [speeds[name] for name in question.to if name in speeds]
            if question.of in speeds and rivals:
                found += _answers(question, temperature, speeds, kinds)
    return found


def _answers(
    question: Question,
    temperature: float,
    speeds: Mapping[str, Speeds],
    kinds: Mapping[str, Sequence[str]],
) -> Iterator[Ratio]:
    ours = speeds[question.of]
    rivals = [name for name in question.to if name in speeds]
    common = [prompt for prompt in ours if all(prompt in speeds[name] for name in rivals)]
    if not common:
        return
    to = max(rivals, key=lambda name: geometric_mean([speeds[name][prompt] for prompt in common]))
    for kind, prompts in kinds.items():
        quotients = [ours[prompt] / speeds[to][prompt] for prompt in prompts if prompt in common]
        if quotients:
            low, high = interval(quotients)
            mean = geometric_mean(quotients)
            yield Ratio(question.name, temperature, kind, to, len(quotients), mean, low, high)


def _speeds(completions: Sequence[Completion]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for c in completions:
        through = "@grpc" if c.contender.where == "grpc" else ""
        of_system = found.setdefault(c.contender.system + through, {})
        of_system[c.task.prompt.id] = c.measurement.tokens_per_s
    return found


def _kinds(completions: Sequence[Completion]) -> dict[str, list[str]]:
    """Prompts by kind: all of them, then by the first part of their category, then by all of it."""
    prompts = list(dict.fromkeys(c.task.prompt for c in completions))
    found: dict[str, list[str]] = {ALL: [prompt.id for prompt in prompts]}
    parts = [prompt.category.split("/")[0] for prompt in prompts]
    for name in sorted({*parts, *(prompt.category for prompt in prompts)} - {""}):
        found[name] = [
            prompt.id
            for prompt, part in zip(prompts, parts, strict=True)
            if name in (part, prompt.category)
        ]
    return found
