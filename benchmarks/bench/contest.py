"""The order in which contenders take turns, and whether they write the same texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.measurement import Measurement, Task, geometric_mean
from bench.systems import SYSTEMS
from card.speculation.pacing import PACINGS

Ours = str
"""A pacing of the registry, one of `SYSTEMS`, or `card_unrelated_draft`: CARD with a draft that
knows nothing."""
Peer = Literal[
    "llama_cpp",
    "llama_cpp_prompt_lookup",
    "llama_cpp_draft",
    "openvino",
    "openvino_speculative",
]
System = str
"""One of ours, a `Peer`, or `draft_alone`: the draft model, decoded autoregressively by our engine.
"""
Where = Literal["in_process", "grpc", "peer"]

OURS = (*PACINGS, *SYSTEMS, "card_unrelated_draft")


class ContenderError(RuntimeError):
    """A contender cannot go on; the message says why. The others can."""


@dataclass(frozen=True)
class Contender:
    """One system with one setting.

    threads     of the model that runs
    rows        most rows of one target pass; where they adapt, those that a text begins with
    gamma       draft passes before a verification, or a peer's draft tokens; None: its own choice
    width       nodes that one draft pass expands
    rows_adapt  each pass takes as many rows as are worth it
    lossless    it promises the text of the target alone, bit for bit
    """

    system: System
    where: Where
    threads: int
    rows: int
    gamma: int | None = None
    width: int | None = None
    rows_adapt: bool = field(default=False, kw_only=True)
    lossless: bool = field(default=True, kw_only=True)
    complete: Callable[[Task], Measurement] = field(compare=False, repr=False, kw_only=True)

    def is_like(self, other: Contender) -> bool:
        """Whether they are settings of one system in one place."""
        return (self.system, self.where) == (other.system, other.where)

    @property
    def is_ours(self) -> bool:
        """Whether it is no peer, nor another model."""
        return self.system in OURS


@dataclass(frozen=True)
class Completion:
    """One text by one contender.

    equal          to what the target wrote alone
    common_prefix  share of that text's tokens before the first difference; None: not seen
    """

    contender: Contender
    task: Task
    measurement: Measurement
    equal: bool
    common_prefix: float | None = None


def compete(
    line_up: Mapping[float, Sequence[Contender]],
    tasks: Sequence[Task],
    before_visit: Callable[[], None] = lambda: None,
    on_completion: Callable[[], None] = lambda: None,
    *,
    on_failure: Callable[[Contender, ContenderError], None] | None = None,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Completion]:
    """Every contender of a temperature writes every text of that temperature.

    All write a text before the next one is begun, so that noise hits all alike, and each visit
    begins with another contender, so that nobody always follows the same one. The reference is
    what the first contender, the target alone, wrote.

    on_failure  told of a contender that cannot go on, which then leaves; absent: the error is
                raised
    has_time    asked before each prompt but the first; no further one is begun without. Within one,
                asked before each setting of a system that has another one there already
    """
    left: set[Contender] = set()
    completions: list[Completion] = []
    for visit, task in enumerate(tasks):
        # All temperatures of a prompt, or none.
        begins = visit == 0 or task.prompt != tasks[visit - 1].prompt
        if visit and begins and not has_time():
            break
        before_visit()
        able = [contender for contender in line_up[task.temperature] if contender not in left]
        first = visit % len(able)
        found: dict[Contender, Measurement] = {}
        for contender in (*able[first:], *able[:first]):
            another = contender is not able[0] and any(map(contender.is_like, found))
            if another and not has_time():
                continue
            try:
                found[contender] = contender.complete(task)
            except ContenderError as error:
                if on_failure is None:
                    raise
                left.add(contender)
                on_failure(contender, error)
            on_completion()
        reference = found[able[0]]
        for contender in able:
            if contender in found:
                written = found[contender]
                equal = written.writes_the_same_as(reference)
                prefix = common_prefix(written, reference)
                completions.append(Completion(contender, task, written, equal, prefix))
    return completions


def faster_half(completions: Sequence[Completion]) -> dict[float, list[Contender]]:
    """By temperature, of the settings of every system and place that wrote most texts the faster
    half, in their order."""
    found: dict[float, list[Contender]] = {}
    for temperature, means in _means(completions).items():
        kept: set[Contender] = set()
        for settings in _of_each_system(means):
            fastest = sorted(settings, key=lambda contender: -means[contender])
            kept.update(fastest[: (len(settings) + 1) // 2])
        found[temperature] = [contender for contender in means if contender in kept]
    return found


def fastest_settings(completions: Sequence[Completion]) -> dict[float, list[Contender]]:
    """By temperature, of the settings of every system and place that wrote most texts the fastest,
    in the order of the systems."""
    return {
        temperature: [max(settings, key=means.__getitem__) for settings in _of_each_system(means)]
        for temperature, means in _means(completions).items()
    }


def _means(completions: Sequence[Completion]) -> dict[float, dict[Contender, float]]:
    """By temperature the mean speed of every contender; of settings that left early none."""
    speeds: dict[float, dict[Contender, list[float]]] = {}
    for completion in completions:
        of_contender = speeds.setdefault(completion.task.temperature, {})
        of_contender.setdefault(completion.contender, []).append(
            completion.measurement.tokens_per_s
        )
    return {
        temperature: {
            contender: geometric_mean(of_contender[contender])
            for settings in _of_each_system(of_contender)
            for contender in _longest_in(settings, of_contender)
        }
        for temperature, of_contender in speeds.items()
    }


def _longest_in(
    settings: Sequence[Contender], speeds: Mapping[Contender, Sequence[float]]
) -> list[Contender]:
    most = max(len(speeds[contender]) for contender in settings)
    return [contender for contender in settings if len(speeds[contender]) == most]


def _of_each_system(contenders: Iterable[Contender]) -> list[list[Contender]]:
    """The settings of each system and place, in their order."""
    found: dict[tuple[str, str], list[Contender]] = {}
    for contender in contenders:
        found.setdefault((contender.system, contender.where), []).append(contender)
    return list(found.values())


def common_prefix(written: Measurement, reference: Measurement) -> float | None:
    """Share of the tokens before the first difference; None where tokens are not seen."""
    if written.tokens is None or reference.tokens is None:
        return None
    pairs = zip(written.tokens, reference.tokens, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), len(reference.tokens))
    return same / max(1, len(reference.tokens))
