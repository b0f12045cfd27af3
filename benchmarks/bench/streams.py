"""`bench streams`: many streams at once, CARD and decoding alone by turns."""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.cells import Cells, Columns, table
from bench.conclusion import keep
from bench.conditions import Machine, named_engines, portable, this_machine
from bench.in_process import InProcess, Loops, slot_request
from bench.line_up import thread_counts
from bench.measurement import Task
from bench.names import name_of
from bench.options import SettingsFile
from bench.progress import shown
from bench.prompts import Prompt
from bench.report import draw, page
from bench.streams_figures import StreamedText, StreamsRow, row_of
from bench.terminal import (
    DIFFER,
    PROMPTS,
    make_console,
    prompts_of,
    results_option,
    said_in_one_line,
    tasks_of,
)
from card.cache import CardSlot, Finish
from card.cores import usable_cores
from card.serving.requests.vocabulary import Vocabulary
from card.settings import Settings, load_settings
from card.speculation.pacing import PACINGS, PLAIN

COUNTS = (1, 2, 4, 8, 16, 32)
SYSTEMS = (PLAIN, "card")


def streams(
    prompts: Annotated[
        Path, typer.Option(help="JSONL with id, category and prompt in each line.")
    ] = PROMPTS,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each stream.")] = 128,
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
    json_file: Annotated[Path | None, results_option("DATE-streams.json")] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Measure many streams at once."""
    machine, console = this_machine(), make_console()
    with said_in_one_line():
        settings = load_settings(settings_file)
        counts = list(dict.fromkeys(count or COUNTS))
        settings = _with_slots(settings, max(counts))
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, None, max_tokens)
        pair = InProcess(settings, vocabulary.tokenizer)
        tasks = tasks_of(_spread(chosen, texts), [temperature], max_tokens)
        rows = _measure_streams(console, pair, tasks, counts, repeats, texts)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = StreamsReport(
        command=shlex.join(["./scripts/bench", *sys.argv[1:]]),
        date=date,
        machine=machine,
        settings=portable(pair.settings),
        engines=pair.engines.names,
        dtype=pair.dtype,
        max_tokens=max_tokens,
        temperature=temperature,
        repeats=repeats,
        rows=rows,
    )
    draw(console, found.tables())
    keep(console, found, date, "streams", json_file)
    if not all(row.texts_equal for row in rows):
        print("error: a stream's text is not what it is alone", file=sys.stderr)
        raise typer.Exit(DIFFER)


@dataclass(frozen=True)
class StreamsReport:
    """Everything that `bench streams` found."""

    command: str
    date: str
    machine: Machine
    settings: dict[str, object]
    engines: dict[str, str]
    dtype: str
    max_tokens: int
    temperature: float
    repeats: int
    rows: list[StreamsRow]

    def tables(self) -> list[Cells]:
        return [table("Streams", _COLUMNS, self.rows)]

    def content(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self) -> str:
        how = (
            f"{named_engines(self.engines)} in {self.dtype}; {self.max_tokens} tokens a stream at "
            f"temperature {self.temperature:g}, medians of {self.repeats}."
        )
        return page("Many streams", self.command, self.date, self.machine, how, self.tables())


_COLUMNS: Columns[StreamsRow] = (
    ("system", lambda row: name_of(row.system)),
    ("streams", lambda row: str(row.streams)),
    ("tokens/s", lambda row: f"{row.tokens_per_s:.0f}"),
    ("all open", lambda row: f"{row.full_tokens_per_s:.0f}"),
    ("p50 ms/token", lambda row: f"{row.p50_ms:.2f}"),
    ("p99 ms/token", lambda row: f"{row.p99_ms:.2f}"),
    ("p99 gap ms", lambda row: f"{row.gap_p99_ms:.1f}"),
    ("first token ms", lambda row: f"{row.first_token_ms:.0f}"),
    ("tokens/step", lambda row: f"{row.tokens_per_step:.2f}"),
    ("texts", lambda row: "equal" if row.texts_equal else "DIFFER"),
)


def _spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """At most so many prompts of all kinds, which lie one behind the other in a file, by turns."""
    every = max(1, len(prompts) // count)
    of_all = list(prompts[::every])[:count]
    half = (len(of_all) + 1) // 2
    return [
        prompt for pair in zip_longest(of_all[:half], of_all[half:]) for prompt in pair if prompt
    ]


def _with_slots(settings: Settings, count: int) -> Settings:
    slots = max(count, settings.cache.slots)
    return settings.model_copy(update={"cache": settings.cache.model_copy(update={"slots": slots})})


def _measure_streams(
    console: Console,
    pair: InProcess,
    tasks: Sequence[Task],
    counts: list[int],
    repeats: int,
    texts: int,
) -> list[StreamsRow]:
    """Both systems by turns for every count, round after round."""
    found: dict[tuple[str, int], list[StreamsRow]] = {}
    with pair.beside() as loops:
        alone: dict[Task, list[int]] = {}
        loops.complete(tasks[0], "card", threads=pair.settings.target.threads)
        work = [(number, system) for number in counts for system in SYSTEMS]
        with shown(console, "runs of streams", len(work) * repeats) as advance:
            for _ in range(repeats):
                for number, system in work:
                    threads = _threads(pair, system)
                    wanted = [tasks[index % len(tasks)] for index in range(max(number, texts))]
                    for task in wanted:
                        if task not in alone:
                            found_alone = loops.complete(task, PLAIN, threads=threads)
                            alone[task] = list(found_alone.tokens or ())
                    row = _run(loops, number, wanted, system, threads, alone)
                    found.setdefault((system, number), []).append(row)
                    advance()
    return [_median_row(rows) for rows in found.values()]


def _threads(pair: InProcess, system: str) -> int:
    """All cores where the target has them to itself."""
    if not PACINGS[system].drafts:
        return thread_counts(usable_cores())[-1]
    return pair.settings.target.threads


def _run(
    loops: Loops,
    number: int,
    tasks: Sequence[Task],
    system: str,
    threads: int,
    alone: dict[Task, list[int]],
) -> StreamsRow:
    """All tasks, `number` at once."""
    loops.use(threads, system)
    pool = loops.pool
    free = [pool.card_slot(index) for index in range(number)]
    waiting = list(reversed(tasks))
    opened: list[tuple[CardSlot, int, Task, StreamedText]] = []
    closed: list[CardSlot] = []
    texts: list[StreamedText] = []
    steps, equal = 0, True
    started = time.perf_counter()
    while waiting or opened or closed:
        while free and waiting:
            slot, session_id, task = free.pop(), pool.new_session_id(), waiting.pop()
            text = StreamedText(time.perf_counter() - started)
            slot.open(slot_request(task, system), session_id)
            opened.append((slot, session_id, task, text))
        loops.step()
        now = time.perf_counter() - started
        for stream in list(opened):
            slot, session_id, task, text = stream
            runs = slot.finish(session_id) is Finish.RUNNING
            committed = slot.committed(session_id)
            if committed > text.tokens:
                text.commits.append((now, committed - text.tokens))
            if runs:
                continue
            equal = equal and slot.output(0, committed).tolist() == alone[task]
            steps += slot.counters().steps
            slot.close()
            texts.append(text)
            opened.remove(stream)
            closed.append(slot)
        for slot in list(closed):
            if slot.reclaim():
                closed.remove(slot)
                free.append(slot)
    return row_of(system, number, texts, sum(text.tokens for text in texts) / steps, equal)


_MEDIANS = (
    "tokens_per_s",
    "full_tokens_per_s",
    "p50_ms",
    "p99_ms",
    "gap_p99_ms",
    "first_token_ms",
    "tokens_per_step",
)


def _median_row(rows: Sequence[StreamsRow]) -> StreamsRow:
    medians = {name: statistics.median(getattr(row, name) for row in rows) for name in _MEDIANS}
    return replace(rows[0], **medians, texts_equal=all(row.texts_equal for row in rows))
