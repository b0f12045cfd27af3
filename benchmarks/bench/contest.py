"""How suite, family and streams run: load, line up, choose settings, run all texts, report.

Every system competes with each setting that is tried, in process or through a server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.console import Console
from tokenizers import Tokenizer

from bench.chats import read_chats
from bench.conditions import conditions_of
from bench.figures import Question, ratios, summarise
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.prompts import Prompt, check_room
from bench.report import Report
from bench.runner import Contender, Runner, clock_of, fastest_settings, of_phase
from bench.served import Device, device, serving
from bench.systems import System
from bench.terminal import DIFFER, TEMPERATURES, Extent, results_file, said_in_one_line
from card.cores import usable_cores
from card.settings import Settings, load_settings
from card.speculation.pacing import PACINGS
from model_files.opening import is_gguf
from training.cutting import cut


@dataclass(frozen=True)
class Contest:
    """The models and texts of a run, from which contenders are made.

    stack    ends what contenders run on
    skipped  gets a line for each contender that cannot take part
    """

    title: str
    extent: Extent
    console: Console
    stack: ExitStack
    pair: InProcess
    tokenizer: Tokenizer
    tasks: Sequence[Task]
    load_before: float
    skipped: list[str] = field(default_factory=list)

    def run(
        self,
        contenders: Sequence[Contender],
        questions: Sequence[Question],
        rounds: Sequence[Task] | None = None,
    ) -> None:
        """Let all contenders write all texts, the target alone first, and show and store a report,
        by default among the results, by its date and command.

        rounds  what they write, without a choice of settings; None: the tasks, behind a choice

        Raises `typer.Exit` where a text of ours is not the target's own.
        """
        extent, tasks, console = self.extent, self.tasks, self.console
        runner, pilot = Runner(console, self.skipped), []
        chosen = {tasks[0].temperature: list(contenders)}
        if rounds is None:
            pilot = runner.try_settings(contenders, tasks, clock_of(extent.minutes / 2))
            chosen = fastest_settings(pilot)
        done = runner.run(chosen, of_phase("texts", rounds or tasks), clock_of(extent.minutes))
        written = tasks if rounds else [completion.task for completion in done]
        report = Report(
            title=self.title,
            conditions=conditions_of(self.pair, self.load_before, extent.prompts, tasks, written),
            ratios=ratios(done, questions),
            rows=summarise(done),
            tried=summarise(pilot),
            skipped=self.skipped,
        )
        console.print(report.markdown(), highlight=False, markup=False, soft_wrap=True)
        file = extent.json_file or results_file(report.conditions["date"], self.title)
        for path in report.store(file):
            console.print(str(path), highlight=False, soft_wrap=True)
        for c in (*pilot, *done):
            if c.contender.where != "peer" and c.contender.lossless and not c.equal:
                text = f"prompt {c.task.prompt.id} at temperature {c.task.temperature:g}"
                print(f"error: {c.contender} wrote another text for {text}", file=sys.stderr)
        if not report.texts_are_equal:
            raise typer.Exit(DIFFER)


@contextmanager
def contest(title: str, extent: Extent) -> Iterator[Contest]:
    """Load both models and read the prompts. Raises `typer.Exit`."""
    load_before, console = round(os.getloadavg()[0], 2), Console()
    with said_in_one_line(), ExitStack() as stack:
        settings = load_settings(extent.settings_file)
        cache = settings.cache.model_copy(update={"slots": max(extent.slots, settings.cache.slots)})
        settings = settings.model_copy(update={"cache": cache})
        tokenizer, tasks = read_tasks(settings, extent)
        settings = stack.enter_context(_with_small_draft(settings))
        with console.status("loading both models"):
            pair = InProcess(settings, tokenizer)
        yield Contest(title, extent, console, stack, pair, tokenizer, tasks, load_before)


def read_tasks(settings: Settings, extent: Extent) -> tuple[Tokenizer, list[Task]]:
    """The target's tokenizer, and all texts to write. Raises `ChatTemplateError` and
    `PromptsError`."""
    tokenizer, prompts = read_chats(settings.target.path, extent.prompts, extent.limit)
    check_room(prompts, extent.max_tokens, settings.limits)
    return tokenizer, tasks_of(prompts, extent.temperatures or TEMPERATURES, extent.max_tokens)


def tasks_of(
    prompts: Sequence[Prompt], temperatures: Sequence[float], max_tokens: int
) -> list[Task]:
    """All texts to write, prompt after prompt; the seed is the prompt's place."""
    return [
        Task(prompt, temperature, seed, max_tokens)
        for seed, prompt in enumerate(prompts)
        for temperature in dict.fromkeys(temperatures)
    ]


@contextmanager
def _with_small_draft(settings: Settings) -> Iterator[Settings]:
    """Settings with a `draft_small`; if there is none, it is cut from a draft that is a whole model
    in safetensors."""
    small, draft = settings.draft_small, settings.draft
    if small.path.exists() or is_gguf(draft.path) or settings.has_head:
        yield settings
        return
    with TemporaryDirectory(prefix="card-bench-draft-small-") as home:
        cut(draft.path, Path(home), [0])
        made = small.model_copy(update={"path": Path(home)})
        yield settings.model_copy(update={"draft_small": made})


def line_up_in_process(
    stack: ExitStack, pair: InProcess, systems: Mapping[str, System]
) -> list[Contender]:
    """Each system as its pacing runs best; `stack` ends what they run on.

    A system with a pacing that adapts has its own pool, draft process and controller, so no other
    system teaches its controller. Other systems share them where their settings are equal.
    """
    open_loops: list[tuple[tuple[bool, Mapping[str, Any]], Loops]] = []

    def beside(adapts: bool, speculation: Mapping[str, Any]) -> Loops:
        for shared, loops in open_loops:
            if shared == (adapts, speculation):
                return loops
        loops = stack.enter_context(pair.beside(**speculation))
        open_loops.append(((adapts, speculation), loops))
        return loops

    found: list[Contender] = []
    for name, system in systems.items():
        pacing, width = PACINGS[system.decoding], system.speculation.get("width", 1)
        if system.on_a_device:
            continue
        if pacing.queries and not pacing.parallel:
            # In one process, where the model that runs has all threads.
            loops_of = stack.enter_context(pair.alternating(**system.speculation))
            found += [
                _contender(name, system, pair, loops_of(gamma, width), gamma, usable_cores())
                for gamma in system.gammas
            ]
        elif pacing.waits:
            room = pair.room_for(pacing.chunk(max(system.gammas)), width)
            loops = stack.enter_context(pair.beside(**{**room, **system.speculation}))
            found += [_contender(name, system, pair, loops, gamma=gamma) for gamma in system.gammas]
        else:
            loops = beside(pacing.adapts, system.speculation)
            found.append(_contender(name, system, pair, loops))
    return found


def _contender(
    name: str,
    system: System,
    pair: InProcess,
    loops: Loops,
    gamma: int | None = None,
    threads: int | None = None,
) -> Contender:
    """threads  None: those of the settings"""
    pacing, count = PACINGS[system.decoding], threads or pair.settings.target.threads

    def complete(task: Task) -> Measurement:
        return loops.complete(
            task, system.decoding, threads=count, gamma=gamma or 1, acceptance=system.acceptance
        )

    rows = pair.rows if pacing.queries else 1
    if gamma is not None:
        rows = pair.rows_for(pacing.chunk(gamma))
    return Contender(name, "in_process", rows, gamma, lossless=system.lossless, complete=complete)


def line_up_served(
    stack: ExitStack,
    pair: InProcess,
    settings_file: Path | None,
    systems: Mapping[str, System],
) -> list[Contender]:
    """The systems behind a server, which `stack` stops; those that draft on a device have one.

    Raises `ServerError`.
    """
    if not systems:
        return []
    server = stack.enter_context(serving(pair.settings, settings_file))
    far: Device | None = None
    if any(system.on_a_device for system in systems.values()):
        far = stack.enter_context(device(pair.settings.draft.path, server))

    def served(name: str, system: System, gamma: int | None) -> Contender:
        def complete(task: Task) -> Measurement:
            if far is not None and gamma is not None:
                return far(task, system.decoding, gamma)
            return server.complete(task, system.decoding)

        return Contender(name, "grpc", pair.rows, gamma, complete=complete)

    return [
        served(name, system, gamma)
        for name, system in systems.items()
        for gamma in (system.gammas if system.on_a_device else (None,))
    ]
