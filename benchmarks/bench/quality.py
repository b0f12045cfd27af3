"""`bench quality`: right answers under each rule of acceptance, beside those of the exact one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cells import Columns, table
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.options import SettingsFile
from bench.progress import shown
from bench.prompts import Prompt
from bench.questions import KINDS, Question, questions
from bench.report import draw
from bench.terminal import make_console, said_in_one_line
from card.serving.requests.vocabulary import Vocabulary
from card.settings import Settings, load_settings
from card.speculation.acceptance import RULES

ANSWER_TOKENS = 40
ROWS = 16
"""Of a pass: a chain that the window of a loose rule fits into."""


@dataclass(frozen=True)
class Quality:
    """What a rule made of all questions.

    right            answers, by kind of question
    foreign_tokens   tokens that the target would not have chosen, of `tokens`
    other_texts      that differ from those of exact acceptance
    """

    acceptance: str
    questions: int
    right: dict[str, int]
    tokens: int
    foreign_tokens: int
    other_texts: int
    tokens_per_step: float


def quality(
    count: Annotated[int, typer.Option("--questions", min=1, help="Half of each kind.")] = 200,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Where the figures go.", show_default="nowhere")
    ] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Count right answers to short sums and extractions, greedy, under each rule of acceptance."""
    console = make_console()
    with said_in_one_line():
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        with console.status("loading both models"):
            pair = InProcess(settings, vocabulary.tokenizer)
        found = _measure(console, pair, vocabulary, questions(count))
    _show(console, settings, found)
    if json_file is not None:
        content = [asdict(entry) for entry in found]
        json_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measure(
    console: Console, pair: InProcess, vocabulary: Vocabulary, asked: Sequence[Question]
) -> list[Quality]:
    tasks = []
    for number, question in enumerate(asked):
        tokens = tuple(vocabulary.tokenizer.encode(question.prompt).ids)
        prompt = Prompt(str(number), question.prompt, tokens, question.kind)
        tasks.append(Task(prompt, 0.0, number, ANSWER_TOKENS))
    answers: dict[str, list[Measurement]] = {acceptance: [] for acceptance in RULES}
    with (
        pair.beside(rows=ROWS) as loops,
        shown(console, "answering", len(RULES) * len(tasks)) as advance,
    ):
        for task in tasks:
            for acceptance in RULES:
                answers[acceptance].append(_answer(loops, pair.settings, task, acceptance))
                advance()
    exact = answers[pair.settings.speculation.acceptance]
    return [_quality(rule, asked, found, exact) for rule, found in answers.items()]


def _answer(loops: Loops, settings: Settings, task: Task, acceptance: str) -> Measurement:
    return loops.complete(task, "card", threads=settings.target.threads, acceptance=acceptance)


def _quality(
    acceptance: str,
    asked: Sequence[Question],
    found: Sequence[Measurement],
    exact: Sequence[Measurement],
) -> Quality:
    right = dict.fromkeys(KINDS, 0)
    for question, answer in zip(asked, found, strict=True):
        right[question.kind] += question.is_answered_by(answer.text)
    return Quality(
        acceptance,
        len(asked),
        right,
        sum(answer.generated for answer in found),
        sum(answer.foreign for answer in found),
        sum(one.text != other.text for one, other in zip(found, exact, strict=True)),
        sum(answer.generated for answer in found) / sum(answer.steps for answer in found),
    )


def _show(console: Console, settings: Settings, found: Sequence[Quality]) -> None:
    speculation = settings.speculation
    title = (
        f"Right answers of {found[0].questions}, greedy "
        f"(θ {speculation.loose_entropy:g}, W {speculation.loose_window})"
    )
    draw(console, [table(title, _COLUMNS, found)])


_COLUMNS: Columns[Quality] = (
    ("acceptance", lambda entry: entry.acceptance),
    ("right", lambda entry: str(sum(entry.right.values()))),
    *((kind, lambda entry, kind=kind: str(entry.right[kind])) for kind in KINDS),
    ("texts that differ", lambda entry: str(entry.other_texts)),
    ("tokens not the target's", lambda entry: f"{entry.foreign_tokens} of {entry.tokens}"),
    ("tokens/step", lambda entry: f"{entry.tokens_per_step:.2f}"),
)
