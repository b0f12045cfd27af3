"""`bench streams`: many streams at once, CARD and decoding alone in turns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import typer

from bench import terminal
from bench.contest import contest, tasks_of
from bench.figures import Question
from bench.in_process import InProcess, Loops, Text
from bench.measurement import Measurement, Task
from bench.prompts import Prompt
from bench.runner import Contender
from card.speculation.pacing import PACINGS, PLAIN

COUNTS = (1, 2, 4, 8, 16, 32)
SYSTEMS = (PLAIN, "auto")


def streams(
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    max_tokens: terminal.MaxTokens = 128,
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
    json_file: terminal.JsonFile = None,
    settings_file: terminal.SettingsFile = None,
) -> None:
    """Measure many streams at once."""
    counts = sorted(set(count or COUNTS))

    extent = terminal.Extent(
        prompts, max_tokens, json_file, settings_file, texts, temperatures=[temperature],
        slots=max(counts),
    )  # fmt: skip
    with contest("streams", extent) as stage:
        few = itertools.cycle(stage.tasks)
        written = list(itertools.islice(few, max(texts, *counts)))
        loops = stage.stack.enter_context(stage.pair.beside())
        loops.complete(written[0], "auto", threads=stage.pair.settings.target.threads)  # warm up
        # The reference, one stream of the target alone, comes first.
        pairs = [(PLAIN, 1), *((name, number) for number in counts for name in SYSTEMS)]
        contenders = [
            _contender(loops, stage.pair, name, number, written)
            for name, number in dict.fromkeys(pairs)
        ]
        alone, auto = (
            {one.streams: one.key for one in contenders if one.system == name} for name in SYSTEMS
        )
        questions = [
            Question(f"auto / autoregressive, streams: {number}", auto[number], (alone[number],))
            for number in counts
        ]
        # One run of all texts counts as one text.
        rounds = [Prompt(f"run {number + 1}", "", ()) for number in range(repeats)]
        stage.run(contenders, questions, tasks_of(rounds, [temperature], max_tokens))


def _contender(
    loops: Loops, pair: InProcess, system: str, number: int, written: Sequence[Task]
) -> Contender:
    def complete(_: Task) -> Measurement:
        loops.use(pair.settings.target.threads, system)
        return measured(number, *loops.write(written, number, system))

    rows = pair.rows if PACINGS[system].queries else 1
    return Contender(system, "in_process", rows, streams=number, complete=complete)


def measured(number: int, texts: Sequence[Text], counts: Counter[str]) -> Measurement:
    """One run as a measurement: the tokens of all texts, one text after the other."""
    ends = sorted(text.commits[-1][0] for text in texts)
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
