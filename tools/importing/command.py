"""`scripts/import_pair`: checks whether two models can be served together, and their speedup."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.prompts import Prompt, PromptsError, check_room, read_prompts
from card.engines.interface import EngineError
from card.settings import REPOSITORY_ROOT, Settings, SettingsError
from importing.agreement import share_within
from importing.checks import Finding, Model, PairError, Verdict, check_pair
from importing.heads import LATE, check_head, head_at, measure_head
from importing.measuring import measure, why_not_measured
from importing.prediction import predicted_speed_up
from importing.settings_file import settings_text, write_settings
from refusal import refuse

PROMPTS = REPOSITORY_ROOT / "benchmarks/prompts.jsonl"
UNUSABLE = 1
"""Exit code for a pair that CARD cannot serve."""

_STYLES = {Verdict.MET: "green", Verdict.LESS: "yellow", Verdict.UNMET: "red"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def import_pair(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[DRAFT] TARGET", help="Hugging Face directories or GGUF files of both models."
        ),
    ],
    draft: Annotated[
        Path | None,
        typer.Option(
            help="The draft, if only TARGET is named: a model, or a head that reads the target's "
            "hidden states."
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(help="Where to write the settings file.", show_default="on the screen"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace that file.")] = False,
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Positions per slot, prompt and output together.",
            show_default="as in settings, or what the models have",
        ),
    ] = None,
    prompts: Annotated[
        Path,
        typer.Option(help="Prompts to measure agreement on (JSONL as benchmarks/prompts.jsonl)."),
    ] = PROMPTS,
    limit: Annotated[int, typer.Option(min=1, help="How many of them.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens after each.")] = 96,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    measured: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Load the models and measure them.")
    ] = True,
) -> None:
    """Check a draft and a target, write settings for them, measure their agreement."""
    console = Console()
    if settings is not None and os.path.lexists(settings) and not force:
        refuse(f"--settings {settings} exists; name another file, or add --force")
    named = [*paths] if draft is None else [draft, *paths]
    if len(named) != 2:
        refuse("name a draft and a target: DRAFT TARGET, or TARGET --draft DRAFT")
    try:
        head, target = head_at(named[0]), Model.read(named[1])
        model: Model | Path = Model.read(named[0]) if head is None else named[0].resolve()
        if isinstance(model, Model):
            findings = check_pair(model, target)
        else:
            assert head is not None
            findings = check_head(head, model, target)
    except (PairError, OSError) as error:
        refuse(error)
    console.print(_table(findings))
    if any(finding.verdict is Verdict.UNMET for finding in findings):
        console.print("These two models cannot be served together.", style="red")
        raise typer.Exit(UNUSABLE)
    text = settings_text(model, target, context)
    loaded = _write(settings, text)
    if settings is None:
        print(text, end="")
    else:
        console.print(f"Settings written: ./scripts/run --settings {settings}", soft_wrap=True)
    if not measured:
        return
    reason = why_not_measured(model, target, loaded) if isinstance(model, Model) else None
    if reason:
        console.print(f"Agreement is not measured: {reason}.", soft_wrap=True)
        console.print("./scripts/plan reckons the speed-up for an agreement and costs given.")
        return
    try:
        texts = _prompts(prompts, target, limit, max_tokens, loaded)
        if isinstance(model, Model):
            _measure(console, loaded, texts, max_tokens, temperature)
        else:
            _measure_head(console, loaded, texts, max_tokens)
    except (PromptsError, EngineError) as error:
        refuse(error)


def _write(file: Path | None, text: str) -> Settings:
    """Write the settings, to nowhere if there is no file, and read them as the server will."""
    try:
        if file is not None:
            return write_settings(file, text)
        with tempfile.NamedTemporaryFile(suffix=".yaml") as nowhere:
            return write_settings(Path(nowhere.name), text)
    except (OSError, SettingsError) as error:
        refuse(error)


def _prompts(
    file: Path, target: Model, limit: int, max_tokens: int, settings: Settings
) -> list[Prompt]:
    found = read_prompts(file, target.files.tokenizer(), limit)
    check_room(found, max_tokens, settings.limits)
    return found


def _measure(
    console: Console, settings: Settings, prompts: list[Prompt], max_tokens: int, temperature: float
) -> None:
    with _counted(console, len(prompts)) as on_text:
        result = measure(settings, prompts, max_tokens, temperature, on_text)
    first, best_four = (share_within(result.ranks, best) for best in (1, 4))
    _say(
        console,
        f"Agreement: {first:.3f} of {len(prompts) * max_tokens} tokens are the "
        f"draft's first choice, {best_four:.3f} among its best four "
        f"(temperature {temperature:g}).",
        _costs(result.target_costs_ms, result.draft_costs_ms),
        f"Arithmetic, not measured: {predicted_speed_up(settings, result):.2f} times the speed of "
        "autoregressive decoding for one stream here, if each model had cores of its own. "
        "./scripts/bench suite measures it.",
    )


def _measure_head(
    console: Console, settings: Settings, prompts: list[Prompt], max_tokens: int
) -> None:
    with _counted(console, len(prompts)) as on_text:
        result = measure_head(settings, prompts, max_tokens, on_text)
    _say(
        console,
        f"Of blocks of {result.block} the target accepts {result.accepted:.2f} tokens if its "
        f"states come in time, {result.late:.2f} if the newest {LATE} tokens have none "
        f"(greedy, {len(prompts)} texts).",
        _costs(result.target_costs_ms, result.draft_costs_ms),
        "./scripts/bench family measures its speed, ./scripts/bench lag more lags.",
    )


@contextmanager
def _counted(console: Console, texts: int) -> Iterator[Callable[[], None]]:
    """Show how many texts are measured; yields what counts one."""
    done = 0
    with console.status("loading both models") as status:

        def show() -> None:
            nonlocal done
            done += 1
            status.update(f"measured {done} of {texts} texts")

        yield show


def _costs(target: Mapping[int, float], draft: Mapping[int, float]) -> str:
    return (
        f"A pass of 1 and of 8 rows takes {target[1]:.2f} and {target[8]:.2f} ms in the target, "
        f"{draft[1]:.2f} and {draft[8]:.2f} ms in the draft."
    )


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _table(findings: list[Finding]) -> Table:
    table = Table()
    for heading in ("needed", "", "found"):
        table.add_column(heading)
    for finding in findings:
        verdict = Text(finding.verdict.value, style=_STYLES[finding.verdict])
        table.add_row(finding.need, verdict, Text(finding.detail))
    return table
