"""The command line: check a result, predict a placement, measure a pair, plan a hierarchy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from planning import report
from planning.acceptance import Likeness, Profile, weights_hash
from planning.checking import compare
from planning.errors import PlanError
from planning.hardware import preset_names, read_preset, scenes
from planning.predicting import predict as predict_scene
from planning.results import Result

if TYPE_CHECKING:
    from card.engines import Engine
    from card.settings import Settings

PROFILES = Path(__file__).parent / "profiles"
REPOSITORY = Path(__file__).resolve().parents[2]
TOLERANCE = 0.10
OFF, WRONG = 1, 2
"""Exit codes: a prediction is off by more than the tolerance, an input is wrong."""
_FILE_COLUMNS = 190

app = typer.Typer(
    help="Predict the speed of every pacing. Everything printed as predicted is simulated.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", help="Measured foresight of the pair (see `measure`)."),
]
_Json = Annotated[
    Path | None,
    typer.Option("--json", help="Also write the figures to this file."),
]
_Prompts = Annotated[
    Path, typer.Option(help="JSONL with id, category and prompt or messages in each line.")
]
_Limit = Annotated[int | None, typer.Option(min=1, help="Use the first prompts only.")]
_MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens written for a prompt.")]
_Temperatures = Annotated[
    list[float] | None, typer.Option(min=0, help="May be repeated.", show_default="0, 0.8")
]
_SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="Another settings file (YAML).", show_default="built in"),
]
_Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]


@app.command()
def check(
    result_file: Annotated[
        Path, typer.Argument(metavar="RESULT.json", help="A result of ./scripts/bench suite.")
    ],
    profile_file: _ProfileFile = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest error allowed.")] = TOLERANCE,
    seed: _Seed = 0,
    json_file: _Json = None,
) -> None:
    """Predict what a benchmark measured from its step costs, and compare.

    The exit code is 1 if a prediction in process is off by more than the tolerance. Through gRPC
    four more processes share the cores, which the model leaves out.
    """
    with _told():
        result = Result.read(result_file)
        profile = Profile.read(profile_file) if profile_file else profile_of(result)
        comparisons = []
        for row in result.rows:
            foresight = profile.at(row.temperature)
            if row.pacing is None:
                continue
            if foresight is None:
                raise PlanError(
                    f"the profile of {profile.prompts} has no temperature {row.temperature:g}: "
                    "run ./scripts/plan measure with it"
                )
            comparisons.append(compare(result, row, foresight, seed))
        if not any(found.decides for found in comparisons):
            raise PlanError(f"{result_file} holds no system in process that can be predicted")
    console = _console()
    console.print(f"{result.command}, {result.date}", highlight=False)
    report.print_comparisons(console, comparisons, tolerance)
    decisive = [abs(found.error) for found in comparisons if found.decides]
    served = [abs(found.error) for found in comparisons if not found.decides]
    verdict = f"Largest error {max(decisive):.1%} in process; allowed {tolerance:.0%}."
    if served:
        verdict += (
            " Through gRPC, where four more processes share the cores, which the model leaves out, "
            f"{max(served):.1%}."
        )
    console.print(verdict, highlight=False, soft_wrap=True)
    _store(json_file, [report.comparison_record(found) for found in comparisons])
    if max(decisive) > tolerance:
        raise typer.Exit(OFF)


@app.command()
def predict(
    presets: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE...",
            help=f"Presets ({', '.join(preset_names())}) or YAML files.",
        ),
    ],
    profile_file: _ProfileFile = None,
    agreement: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01, max=0.99, help="May be repeated.", show_default="as the preset says"
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(help="Only placements whose name holds this.", show_default="all"),
    ] = None,
    seed: _Seed = 0,
    json_file: _Json = None,
) -> None:
    """Predict every pacing for hardware that is not here, and recommend settings for CARD."""
    with _told():
        chosen = [read_preset(name) for name in presets]
        profile = Profile.read(profile_file or PROFILES / "prompts.yaml")
        likeness = Likeness.of(profile.foresights[0])
    console = _console()
    records = []
    for preset in chosen:
        report.print_preset(console, preset)
        levels = agreement or preset.agreements
        for scene in scenes(preset):
            if placement and placement not in scene.placement.name:
                continue
            if scene.problem:
                report.print_impossible(console, scene)
                records.append({"preset": preset.title, **report.impossible_record(scene)})
                continue
            with _bar(console, "simulating", len(levels)) as advance:
                found = predict_scene(scene, likeness, levels, seed, advance)
            report.print_prediction(console, found)
            records.append({"preset": preset.title, **report.prediction_record(found)})
    _store(json_file, records)


@app.command()
def measure(
    output: Annotated[Path, typer.Argument(metavar="PROFILE.yaml", help="Where it goes.")],
    prompts: _Prompts = REPOSITORY / "benchmarks" / "prompts" / "suite.jsonl",
    limit: _Limit = None,
    max_tokens: _MaxTokens = 128,
    temperature: _Temperatures = None,
    settings_file: _SettingsFile = None,
) -> None:
    """Measure how the draft foresees the target's texts."""
    # Models take seconds to import; only this command needs them.
    from bench.conditions import relative
    from bench.prompts import PromptsError
    from bench.terminal import prompts_of
    from card.decoding.from_settings import ngram_memory
    from card.engines import EngineError
    from card.engines.processor import resolve_dtype
    from card.serving.requests.vocabulary import Vocabulary
    from card.settings import SettingsError, load_settings
    from card_client.chat_template import ChatTemplateError
    from planning.measuring import DRAFT, SMALL, TARGET, measure_foresight

    console = _console()
    temperatures = temperature or [0.0, 0.8]
    try:
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, limit, max_tokens)
        engines = _engines(settings)
        ngrams = ngram_memory(settings, engines[TARGET].vocabulary)
    except (SettingsError, PromptsError, ChatTemplateError, EngineError) as error:
        _refuse(error)
    pair, small = (engines[TARGET], engines[DRAFT]), engines.get(SMALL)
    with _bar(console, "texts", len(chosen) * len(temperatures)) as advance:
        foresights = [
            measure_foresight(*pair, chosen, max_tokens, at, advance, ngrams, small)
            for at in temperatures
        ]
    name = relative(prompts)
    profile = Profile(
        command=f"./scripts/plan measure --prompts {name} --max-tokens {max_tokens}"
        + (f" --limit {limit}" if limit else "")
        + "".join(f" --temperature {at:g}" for at in temperatures),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        prompts=name,
        target=weights_hash(settings.target.path),
        draft=weights_hash(settings.draft.path),
        dtype=resolve_dtype(settings.target.dtype),
        foresights=foresights,
    )
    output.write_text(
        yaml.safe_dump(profile.model_dump(), sort_keys=False, width=4096), encoding="utf-8"
    )
    report.print_profile(console, profile)


@app.command()
def hierarchy(
    prompts: _Prompts = REPOSITORY / "benchmarks" / "prompts" / "suite.jsonl",
    limit: _Limit = 16,
    max_tokens: _MaxTokens = 128,
    temperature: _Temperatures = None,
    settings_file: _SettingsFile = None,
    json_file: _Json = None,
) -> None:
    """Measure what every level of a hierarchy of drafts costs and how often it agrees with those
    above it, and say which levels pay, with parcels of how many tokens, and what they gain."""
    from bench.conditions import relative
    from bench.prompts import PromptsError
    from bench.terminal import prompts_of
    from card.engines import EngineError
    from card.serving.requests.vocabulary import Vocabulary
    from card.settings import SettingsError, load_settings
    from card.speculation.pacing import PACINGS
    from card_client.chat_template import ChatTemplateError
    from planning.hierarchy import Level, every_ladder, way_of
    from planning.measuring import NGRAMS, TARGET, measure_agreements

    console = _console()
    try:
        settings = load_settings(settings_file)
        vocabulary = Vocabulary.load(settings.target.path)
        chosen = prompts_of(settings, vocabulary, prompts, limit, max_tokens)
        engines = _engines(settings)
    except (SettingsError, PromptsError, ChatTemplateError, EngineError) as error:
        _refuse(error)
    levels = [Level(NGRAMS, {})]
    levels += [Level(name, engine.row_costs_ms) for name, engine in engines.items()]
    way = way_of(PACINGS[settings.decoding])
    target = engines.pop(TARGET)
    records = []
    for at in dict.fromkeys(temperature or [0.0, 0.8]):
        with _bar(console, "texts", len(chosen)) as advance:
            agreements = measure_agreements(target, engines, chosen, max_tokens, at, advance)
        ladders = every_ladder(levels, agreements, way=way)
        report.print_ladders(console, relative(prompts), at, levels, agreements, ladders)
        records.append(report.ladders_record(at, levels, agreements, ladders))
    _store(json_file, records)


def _engines(settings: Settings) -> dict[str, Engine]:
    """The pair, and a smaller draft if there is one, the cheapest first. Raises `EngineError`."""
    from bench.drafts import with_small_draft
    from card.loading import load_engine
    from planning.measuring import DRAFT, SMALL, TARGET

    with with_small_draft(settings) as whole:
        small = whole.model_copy(update={"draft": whole.draft_small})
        found = {SMALL: load_engine(small, "draft")} if whole.draft_small.path.exists() else {}
        return {**found, DRAFT: load_engine(whole, "draft"), TARGET: load_engine(whole, "target")}


def profile_of(result: Result, folder: Path = PROFILES) -> Profile:
    """The profile in `folder` of the result's prompts, measured with the weights that are here; of
    several that of the result's dtype, else one that does not tell its own."""
    known = [Profile.read(path) for path in sorted(folder.glob("*.yaml"))]
    found = [
        profile for profile in known if Path(profile.prompts).name == Path(result.prompts).name
    ]
    if not found:
        raise PlanError(
            f"no profile of {result.prompts}: run ./scripts/plan measure and name the file with "
            "--profile"
        )
    profile = min(found, key=lambda p: (p.dtype != result.dtype, p.dtype is not None))
    for role, path in (
        ("target", result.settings.target.path),
        ("draft", result.settings.draft.path),
    ):
        model = REPOSITORY / path
        if model.exists() and weights_hash(model) != getattr(profile, role):
            raise PlanError(
                f"the profile of {profile.prompts} was measured with another {role} than {path} "
                "holds: run ./scripts/plan measure again, or name with --profile that of the "
                "result's pair"
            )
    return profile


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        _refuse(error)


def _refuse(error: Exception) -> None:
    Console(stderr=True).print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(WRONG) from error


@contextmanager
def _bar(console: Console, what: str, total: int) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _console() -> Console:
    """A terminal as wide as it is; a file wide enough for the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_COLUMNS)


def _store(file: Path | None, records: list[dict[str, Any]]) -> None:
    if file is not None:
        file.write_text(json.dumps(records, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
