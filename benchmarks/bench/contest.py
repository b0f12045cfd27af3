"""How every command runs: load, line up, choose settings, run all texts, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from tokenizers import Tokenizer

from bench.conditions import conditions_of
from bench.figures import Question, ratios, summarise
from bench.in_process import InProcess
from bench.measurement import Task
from bench.prompts import Prompt, check_room, read_prompts
from bench.report import Report
from bench.runner import Contender, Runner, clock_of, fastest_settings, of_phase
from bench.terminal import (
    TEMPERATURES,
    Extent,
    conclude,
    said_in_one_line,
)
from card.serving.requests.vocabulary import Vocabulary
from card.settings import Settings, load_settings
from card_gateway.template import read_model
from model_files.opening import is_gguf
from training.cutting import cut


@dataclass(frozen=True)
class Stage:
    """What a line-up is made from.

    stack    ends what contenders run on
    skipped  gets a line for each contender that cannot take part
    """

    stack: ExitStack
    pair: InProcess
    tokenizer: Tokenizer
    tasks: Sequence[Task]
    settings_file: Path | None
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LineUp:
    """Who competes, the target alone first.

    rounds  what they write, without a choice of settings; None: the tasks, behind a choice
    """

    contenders: Sequence[Contender]
    questions: Sequence[Question]
    rounds: Sequence[Task] | None = None


def contest(title: str, extent: Extent, line_up: Callable[[Stage], LineUp]) -> None:
    """Let all contenders write all texts, and report. Raises `typer.Exit`."""
    load_before, console = round(os.getloadavg()[0], 2), Console()
    with said_in_one_line(), ExitStack() as stack:
        settings = load_settings(extent.settings_file)
        cache = settings.cache.model_copy(update={"slots": max(extent.slots, settings.cache.slots)})
        settings = settings.model_copy(update={"cache": cache})
        tokenizer = Vocabulary.load(settings.target.path).tokenizer
        template, _ = read_model(settings.target.path)
        prompts = read_prompts(extent.prompts, tokenizer, extent.limit, template.render)
        check_room(prompts, extent.max_tokens, settings.limits)
        tasks = tasks_of(prompts, extent.temperatures or TEMPERATURES, extent.max_tokens)
        settings = stack.enter_context(with_small_draft(settings))
        with console.status("loading both models"):
            pair = InProcess(settings, tokenizer)
        stage = Stage(stack, pair, tokenizer, tasks, extent.settings_file)
        who = line_up(stage)
        runner = Runner(console, stage.skipped)
        pilot = []
        chosen = {tasks[0].temperature: list(who.contenders)}
        if who.rounds is None:
            pilot = runner.try_settings(who.contenders, tasks, clock_of(extent.minutes / 2))
            chosen = fastest_settings(pilot)
        texts = of_phase("texts", who.rounds or tasks)
        completions = runner.run(chosen, texts, clock_of(extent.minutes))
        written = tasks if who.rounds else [completion.task for completion in completions]
        report = Report(
            title=title,
            conditions=conditions_of(pair, load_before, extent.prompts, tasks, written),
            ratios=ratios(completions, who.questions),
            rows=summarise(completions),
            tried=summarise(pilot),
            skipped=stage.skipped,
        )
    conclude(console, report, extent.json_file, [*pilot, *completions])


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
def with_small_draft(settings: Settings) -> Iterator[Settings]:
    """Settings with a `draft_small`; if there is none and the draft is no GGUF file, one is cut."""
    small, draft = settings.draft_small, settings.draft
    if small.path.exists() or is_gguf(draft.path):
        yield settings
        return
    with TemporaryDirectory(prefix="card-bench-draft-small-") as home:
        cut(draft.path, Path(home), [0])
        made = small.model_copy(update={"path": Path(home)})
        yield settings.model_copy(update={"draft_small": made})
