"""`bench streams`: many streams at once, CARD and decoding alone in turns."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bench.contest import LineUp, Stage, contest, tasks_of
from bench.figures import Question
from bench.in_process import InProcess, Loops, slot_request
from bench.measurement import Measurement, Task, slot_counts
from bench.prompts import Prompt
from bench.runner import Contender
from bench.terminal import (
    PROMPTS,
    Extent,
    MaxTokens,
    PromptsFile,
    SettingsFile,
    results_option,
)
from card.cache import CardSlot, Finish
from card.cores import usable_cores
from card.speculation.pacing import PACINGS, PLAIN

COUNTS = (1, 2, 4, 8, 16, 32)
SYSTEMS = (PLAIN, "card")


def streams(
    prompts: PromptsFile = PROMPTS,
    max_tokens: MaxTokens = 128,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.0,
    count: Annotated[
        list[int] | None,
        typer.Option(
            "--streams",
            help="Streams at once. May be repeated.",
            show_default=", ".join(map(str, COUNTS)),
            min=1,
            max=256,
        ),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Texts of each run, of several kinds.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 3,
    json_file: Annotated[Path | None, results_option()] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Measure many streams at once."""
    counts = sorted(set(count or COUNTS))

    def line_up(stage: Stage) -> LineUp:
        few = spread(stage.tasks, texts)
        written = [few[at % len(few)] for at in range(max(texts, *counts))]
        loops = stage.stack.enter_context(stage.pair.beside())
        loops.complete(few[0], "card", threads=stage.pair.settings.target.threads)  # warm up
        # The reference, one stream of the target alone, comes first.
        pairs = [(PLAIN, 1), *((name, number) for number in counts for name in SYSTEMS)]
        contenders = [
            _contender(loops, stage.pair, name, number, written)
            for name, number in dict.fromkeys(pairs)
        ]
        alone, card = (
            {one.streams: one.key for one in contenders if one.system == name} for name in SYSTEMS
        )
        questions = [
            Question(f"CARD / autoregressive, streams: {number}", card[number], (alone[number],))
            for number in counts
        ]
        # One run of all texts counts as one text.
        rounds = [Prompt(f"run {number + 1}", "", ()) for number in range(repeats)]
        return LineUp(contenders, questions, tasks_of(rounds, [temperature], max_tokens))

    extent = Extent(
        prompts, max_tokens, json_file, settings_file, temperatures=[temperature], slots=max(counts)
    )
    contest("Many streams", extent, line_up)


def _contender(
    loops: Loops, pair: InProcess, system: str, number: int, written: Sequence[Task]
) -> Contender:
    # Without a draft all cores are the target's.
    threads = pair.settings.target.threads if PACINGS[system].drafts else usable_cores()

    def complete(_: Task) -> Measurement:
        return write(loops, number, written, system, threads)

    rows = pair.rows if PACINGS[system].queries else 1
    return Contender(system, "in_process", threads, rows, streams=number, complete=complete)


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """At most `count` tasks of all kinds, which follow each other in a file, in turns."""
    every = max(1, len(tasks) // count)
    of_all = list(tasks[::every])[:count]
    half = (len(of_all) + 1) // 2
    return [task for pair in zip_longest(of_all[:half], of_all[half:]) for task in pair if task]


@dataclass
class StreamedText:
    """One text of a run.

    begun_s  seconds since the run began
    commits  seconds since the run began, and how many tokens came
    tokens   ids, when the text has ended
    """

    begun_s: float
    commits: list[tuple[float, int]] = field(default_factory=list)
    tokens: tuple[int, ...] = ()

    @property
    def committed(self) -> int:
        return sum(count for _, count in self.commits)

    @property
    def ended_s(self) -> float:
        return self.commits[-1][0]


def write(
    loops: Loops, number: int, tasks: Sequence[Task], system: str, threads: int
) -> Measurement:
    """All tasks, `number` at once: where a text ends, the next one begins."""
    loops.use(threads, system)
    pool = loops.pool
    free = [pool.card_slot(index) for index in range(number)]
    texts: list[StreamedText] = []
    opened: list[tuple[CardSlot, int, StreamedText]] = []
    closed: list[CardSlot] = []
    counts = Counter[str]()
    started = time.perf_counter()
    while len(texts) < len(tasks) or opened or closed:
        while free and len(texts) < len(tasks):
            slot, session_id = free.pop(), pool.new_session_id()
            request = slot_request(tasks[len(texts)], system)
            texts.append(StreamedText(time.perf_counter() - started))
            slot.open(request, session_id)
            opened.append((slot, session_id, texts[-1]))
        loops.step()
        now = time.perf_counter() - started
        for stream in list(opened):
            slot, session_id, text = stream
            runs = slot.finish(session_id) is Finish.RUNNING
            committed = slot.committed(session_id)
            if committed > text.committed:
                text.commits.append((now, committed - text.committed))
            if not runs:
                text.tokens = tuple(slot.output(0, committed).tolist())
                counts.update(slot_counts(slot.counters()))
                slot.close()
                opened.remove(stream)
                closed.append(slot)
        for slot in list(closed):
            if slot.reclaim():
                closed.remove(slot)
                free.append(slot)
    return measured(number, texts, counts)


def measured(number: int, texts: Sequence[StreamedText], counts: Counter[str]) -> Measurement:
    """One run as a measurement: the tokens of all texts, one text after the other."""
    ends = sorted(text.ended_s for text in texts)
    full_s = ends[-number]
    full = sum(count for text in texts for at, count in text.commits if at <= full_s)
    gaps, per_token = list[float](), list[float]()
    for text in texts:
        for (before, _), (now, count) in itertools.pairwise(text.commits):
            gaps.append(now - before)
            per_token += [(now - before) / count] * count
    first_tokens = [text.commits[0][0] - text.begun_s for text in texts]
    return Measurement(
        text="",
        tokens=tuple(token for text in texts for token in text.tokens),
        generated=sum(text.committed for text in texts),
        seconds=ends[-1],
        first_token_s=float(np.median(first_tokens)),
        counts=counts,
        latency={
            "full_tokens_per_s": full / full_s,
            "p50_ms": 1e3 * float(np.percentile(per_token, 50)),
            "p99_ms": 1e3 * float(np.percentile(per_token, 99)),
            "gap_p99_ms": 1e3 * float(np.percentile(gaps, 99)),
        },
    )
