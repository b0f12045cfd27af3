"""Beside the contest: the worst case, the timeline, and what other settings change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.contest import Completion, compete
from bench.in_process import InProcess, Loops
from bench.line_up import line_up_alone_and_card
from bench.measurement import Task
from bench.standings import Standing, best, stand
from bench.unrelated import unrelated_draft
from bench.watch import Account, Interval, Watch
from card.cache import Decoding
from card.settings import Settings

WORST_TEMPERATURE = 1.5
_TIMELINE_S = 2.0
_NS = 1e9

SWEPT: dict[str, tuple[int | str, ...]] = {
    "width": (1, 2, 4, 8),
    "depth": (8, 16, 32, 64),
    "rows": (2, 4, 8, 12, 16, 24),
    "lookahead": (0, 6),
    "growth": ("best_first", "layered"),
}
"""What the sweep changes, one setting at a time; `lookahead` 0 leaves out the guesses that are
looked up in the text."""


@dataclass(frozen=True)
class WorstCase:
    """CARD with a draft of random weights at a high temperature.

    first_ratio_to_autoregressive  of the first text, which finds out that the draft knows nothing;
                                   the others begin with what it found
    ratio_to_autoregressive        of the medians of the others; the target alone at its best thread
                                   count
    """

    temperature: float
    texts: int
    autoregressive_tokens_per_s: float
    card_tokens_per_s: float
    first_ratio_to_autoregressive: float
    ratio_to_autoregressive: float
    texts_equal: bool


@dataclass(frozen=True)
class Timeline:
    """Two seconds, in seconds from their beginning: when each model was busy."""

    system: str
    gamma: int | None
    target: list[tuple[float, float]]
    draft: list[tuple[float, float]]

    def busy(self, passes: Sequence[tuple[float, float]]) -> float:
        """Share of the time."""
        return sum(end - begin for begin, end in passes) / _TIMELINE_S


@dataclass(frozen=True)
class Observed:
    """CARD, step by step, over all texts of the timeline.

    committed  steps by the tokens they committed, the target's own included
    accounts   where the time of the target's and of the draft's loop went
    """

    committed: dict[int, int]
    hit_rate_after_corrections: float | None
    accounts: list[Account]


@dataclass(frozen=True)
class Variant:
    """CARD with one setting changed, and the target alone in the same minute."""

    setting: str
    value: int | str
    tokens_per_s: float
    ratio_to_autoregressive: float
    tokens_per_step: float


def worst_case(
    settings: Settings,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    threads: Sequence[int],
    has_time: Callable[[], bool],
) -> WorstCase:
    with unrelated_draft(settings.draft.path) as path, ExitStack() as stack:
        draft = settings.draft.model_copy(update={"path": path})
        pair = InProcess(settings.model_copy(update={"draft": draft}), tokenizer)
        contenders = line_up_alone_and_card(stack, pair, threads)
        for contender in contenders[:-1]:  # a second text of CARD would know of the first
            contender.complete(tasks[0])
        first = _fastest(compete(contenders, tasks[:1], 1))
        completions = compete(contenders, tasks[1:] or tasks, 1, has_time=has_time)
    fastest = _fastest(completions)
    alone, card = fastest["autoregressive"], fastest["card"]
    return WorstCase(
        temperature=tasks[0].temperature,
        texts=card.texts,
        autoregressive_tokens_per_s=alone.tokens_per_s,
        card_tokens_per_s=card.tokens_per_s,
        first_ratio_to_autoregressive=first["card"].ratio_to_autoregressive,
        ratio_to_autoregressive=card.ratio_to_autoregressive,
        texts_equal=bool(first["card"].texts_equal and card.texts_equal),
    )


def _fastest(completions: Sequence[Completion]) -> dict[str, Standing]:
    """By system, at one temperature and in one place."""
    return {standing.system: standing for standing in best(stand(completions))}


def observe(
    pair: InProcess, tasks: Sequence[Task], turns: Standing
) -> tuple[Observed, list[Timeline]]:
    """CARD and draft-then-verify as it does best (`turns`), watched for a little more than two
    seconds each."""
    gamma, width = turns.gamma or 1, turns.width or 1
    card, alternating = Watch(), Watch()
    with pair.beside(card) as loops:
        _write_until(loops, tasks, Decoding.CARD, pair.settings.target.threads)
    with pair.alternating(alternating) as loops_of:
        loops = loops_of(gamma, width)
        _write_until(loops, tasks, Decoding.DRAFT_THEN_VERIFY, turns.threads, gamma)
    observed = Observed(
        card.committed_histogram(), card.hit_rate_after_corrections, card.accounts()
    )
    return observed, [
        _timeline("card", None, card),
        _timeline("draft_then_verify", gamma, alternating),
    ]


def sweep(
    pair: InProcess,
    tasks: Sequence[Task],
    alone_threads: int,
    advance: Callable[[], None],
    has_time: Callable[[], bool],
) -> list[Variant]:
    """One setting after the other; what it is compared with is measured in between. Without time
    none but the first is begun."""
    found: list[Variant] = []
    for setting, values in SWEPT.items():
        for value in values:
            if found and not has_time():
                return found
            changes: dict[str, Any] = {setting: value}
            with pair.beside(**changes) as loops:
                found.append(_variant(pair, loops, tasks, alone_threads, setting, value))
            advance()
    return found


def _variant(
    pair: InProcess,
    loops: Loops,
    tasks: Sequence[Task],
    alone_threads: int,
    setting: str,
    value: int | str,
) -> Variant:
    def card(task: Task) -> tuple[float, int, int]:
        threads = pair.settings.target.threads
        found = loops.complete(task, Decoding.CARD, threads=threads)
        return found.tokens_per_s, found.generated, found.steps

    card(tasks[0])
    alone, speeds, tokens, steps = [], [], 0, 0
    for task in tasks:
        reference = loops.complete(task, Decoding.AUTOREGRESSIVE, threads=alone_threads)
        alone.append(reference.tokens_per_s)
        speed, generated, made = card(task)
        speeds.append(speed)
        tokens, steps = tokens + generated, steps + made
    median = float(np.median(speeds))
    return Variant(setting, value, median, median / float(np.median(alone)), tokens / steps)


def _write_until(
    loops: Loops, tasks: Sequence[Task], decoding: Decoding, threads: int, gamma: int = 1
) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < 1.2 * _TIMELINE_S:
        for task in tasks:
            loops.complete(task, decoding, threads=threads, gamma=gamma)


def _timeline(system: str, gamma: int | None, watch: Watch) -> Timeline:
    # The very beginning is prefill and warming up.
    start = watch.target_passes[len(watch.target_passes) // 20][0]

    def window(passes: Sequence[Interval]) -> list[tuple[float, float]]:
        stop = start + int(_TIMELINE_S * _NS)
        inside = ((max(begin, start), min(end, stop)) for begin, end in passes)
        return [
            ((begin - start) / _NS, (end - start) / _NS) for begin, end in inside if end > begin
        ]

    return Timeline(system, gamma, window(watch.target_passes), window(watch.draft_passes))
