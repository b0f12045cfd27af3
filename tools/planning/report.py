"""Tables for the terminal and records for JSON. Whatever is predicted says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from card.speculation.pacing import PACINGS, PLAIN
from planning.acceptance import Profile
from planning.checking import Comparison
from planning.hardware import Preset, Scene
from planning.hierarchy import Agreements, Ladder, Level
from planning.predicting import Outcome, Prediction

_PLACES = {"in_process": "in process", "grpc": "gRPC"}
_LEFT: Literal["left"] = "left"
_RIGHT: Literal["right"] = "right"


def _table(title: str, headings: Sequence[str], names: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, heading in enumerate(headings):
        justify = _LEFT if number < names else _RIGHT
        table.add_column(heading, justify=justify, no_wrap=number < names, overflow="fold")
    return table


def print_comparisons(
    console: Console, comparisons: Sequence[Comparison], tolerance: float
) -> None:
    """Measured beside predicted, one line for each row of the result."""
    headings = (
        *("system", "where", "t", "γ"),
        *("measured", "predicted", "over", "error"),
        *("median measured", "median predicted"),
        *("tokens/step measured", "predicted"),
        *("ms/step", "ms/draft pass"),
    )
    table = _table("Tokens per second, measured and predicted", headings, 3)
    for found in comparisons:
        row = found.row
        table.add_row(
            row.system,
            _PLACES.get(row.where, row.where),
            f"{row.temperature:g}",
            "" if row.gamma is None else str(row.gamma),
            f"{found.measured:.0f}",
            f"{found.predicted:.0f}",
            _over(found),
            f"{found.error:+.1%}",
            f"{row.tokens_per_s:.0f}",
            f"{found.predicted_median:.0f}",
            f"{row.tokens_per_step:.2f}",
            f"{found.tokens_per_step:.2f}",
            f"{found.target_ms:.2f}",
            "" if found.draft_ms is None else f"{found.draft_ms:.2f}",
            style="red" if found.decides and abs(found.error) > tolerance else None,
        )
    console.print(table)
    if any(found.medians for found in comparisons):
        console.print(
            "Over: measured and predicted are tokens per second of all texts together, or the "
            "median over texts where the result tells no steps.",
            highlight=False,
            soft_wrap=True,
        )
    origins = dict.fromkeys(found.draft_from for found in comparisons if found.draft_from)
    for origin in origins:
        console.print(f"Cost of a draft pass: {origin}.", highlight=False)
    told = ((found.row.system, what) for found in comparisons for what in found.assumed)
    for system, what in dict.fromkeys(told):
        console.print(f"{system}: simulated as if {what}.", highlight=False)


def _over(found: Comparison) -> str:
    """What `measured` and `predicted` of a row are taken over."""
    return "median" if found.medians else "all texts"


def print_preset(console: Console, preset: Preset) -> None:
    """What is predicted, and what is published about the pair."""
    console.rule(f"{preset.title} (predicted)")
    for published in preset.literature:
        console.print(f"Published: {published.value} ({published.source}).", highlight=False)
    for note in preset.notes:
        console.print(f"Note: {note}", highlight=False)


def print_prediction(console: Console, prediction: Prediction) -> None:
    """Speed-ups of all pacings over agreement, and the settings of those that wait for nobody."""
    agreements = list(dict.fromkeys(o.agreement for o in prediction.outcomes))
    scene = prediction.scene
    context = scene.preset.context
    alone = prediction.of(PLAIN, agreements[0]).tokens_per_s
    console.print(
        f"[bold]{scene.placement.name}[/bold]: predicted pass of the target "
        f"{scene.target.work(1, context).ms:.2f} ms at 1 row, "
        f"{scene.target.work(16, context).ms:.2f} at 16; of the draft "
        f"{scene.draft.work(4, context).ms:.2f} ms at 4; {PLAIN} {alone:.1f} tokens/s.",
        highlight=False,
    )
    headings = ["pacing", *(f"at agreement {a:g}" for a in agreements)]
    table = _table("Predicted speed-up over autoregressive decoding", headings, 1)
    predicted = {outcome.pacing: PACINGS[outcome.pacing] for outcome in prediction.outcomes}
    for pacing in predicted:
        found = [prediction.of(pacing, agreement) for agreement in agreements]
        table.add_row(pacing, *(_speed_up(outcome) for outcome in found))
    for pacing in (name for name, found in predicted.items() if found.queries and not found.waits):
        configs = [prediction.of(pacing, agreement).config for agreement in agreements]
        table.add_section()
        for setting in ("width", "depth", "rows"):
            values = (str(getattr(config, setting)) for config in configs)
            table.add_row(f"{pacing}: {setting}", *values)
    console.print(table)


def _speed_up(outcome: Outcome) -> str:
    shown = f"{outcome.speed_up:.2f}"
    if PACINGS[outcome.pacing].waits:
        shown += f" (γ {outcome.config.num_draft_tokens})"
    return shown


def print_impossible(console: Console, scene: Scene) -> None:
    console.print(f"[bold]{scene.placement.name}[/bold]: {scene.problem}", highlight=False)


def print_profile(console: Console, profile: Profile) -> None:
    """What `measure` found."""
    headings = (
        *("temperature", "tokens", "agreement", "in best 2, 4, 8"),
        *("mean run", "persistence", "right proposals"),
    )
    table = _table(f"Foresight on {profile.prompts} (measured)", headings, 0)
    for found in profile.foresights:
        table.add_row(
            f"{found.temperature:g}",
            str(sum(len(text.ranks) for text in found.texts)),
            f"{found.agreement:.3f}",
            "  ".join(f"{found.within(best):.3f}" for best in (2, 4, 8)),
            f"{found.mean_run:.1f}",
            f"{found.persistence:.2f}",
            f"{found.right_proposals:.3f}",
        )
    console.print(table)


def print_ladders(
    console: Console,
    prompts: str,
    temperature: float,
    levels: Sequence[Level],
    agreements: Agreements,
    ladders: Sequence[Ladder],
) -> None:
    """What each choice of levels would give, and which one to take; the quickest is the first."""
    names = [level.name for level in levels]
    table = _table(
        f"Agreement on {prompts} at temperature {temperature:g}, and costs (measured)",
        ["level", *(f"agreed to by {name}" for name in names[1:]), "ms, 1 row", "4", "8"],
        1,
    )
    for level in levels:
        shares = (agreements.get((level.name, above)) for above in names[1:])
        told = ("" if share is None else f"{share:.3f}" for share in shares)
        costs = (f"{level.pass_ms(rows):.2f}" for rows in (1, 4, 8))
        table.add_row(level.name, *told, *costs)
    console.print(table)
    alone = next(ladder for ladder in ladders if len(ladder.levels) == 1)
    table = _table("Predicted", ["levels", "parcels", "ms/token", "speed-up"], 2)
    for ladder in ladders:
        table.add_row(
            " → ".join(ladder.levels),
            ", ".join(map(str, ladder.parcels)),
            f"{ladder.ms_per_token:.2f}",
            f"{alone.ms_per_token / ladder.ms_per_token:.2f}",
        )
    console.print(table)
    console.print(advice_on(ladders), highlight=False, soft_wrap=True)


_NOTICEABLE = 0.0005
"""A smaller difference is shown as none."""


def advice_on(ladders: Sequence[Ladder]) -> str:
    """Which levels to take, how much they gain over one level less, and by which settings."""
    best = ladders[0]
    said = f"Predicted quickest: {' → '.join(best.levels)}."
    more = [ladder for ladder in ladders if set(ladder.levels) > set(best.levels)]
    less = [ladder for ladder in ladders if set(ladder.levels) < set(best.levels)]
    if less:
        gain = _longer(less[0], best)
        said += f" It is {gain:.1%} faster than with a level less ({' → '.join(less[0].levels)})."
    worse = [ladder for ladder in more if _longer(ladder, best) > _NOTICEABLE]
    if worse:
        loss = _longer(worse[0], best)
        said += f" A level less is faster: {' → '.join(worse[0].levels)} takes {loss:.1%} longer."
    elif more:
        said += f" A level more gains nothing: {' → '.join(more[0].levels)}."
    return f"{said} Settings: {_settings_for(best)}."


def _longer(ladder: Ladder, best: Ladder) -> float:
    """By what share its tokens take longer."""
    return ladder.ms_per_token / best.ms_per_token - 1


def _settings_for(ladder: Ladder) -> str:
    """That give these levels and parcels."""
    parcel = dict(zip(ladder.levels, ladder.parcels, strict=False))
    if len(ladder.levels) == 1:
        return "speculation: {decoding: autoregressive}"
    ngram_tokens = f"ngram_tokens: {parcel.get('n-grams', 0)}"
    if "draft" in parcel and "draft_small" in parcel:
        rest = f"parcel: {parcel['draft_small']}, num_draft_tokens: {parcel['draft']}"
        return f"speculation: {{drafter: hierarchy, {ngram_tokens}, {rest}}}"
    if "draft_small" in parcel:
        rest = f"num_draft_tokens: {parcel['draft_small']}"
        return (
            "draft: {path: that of draft_small}, "
            f"speculation: {{drafter: cascade, {ngram_tokens}, {rest}}}"
        )
    if "draft" in parcel:
        rest = f"num_draft_tokens: {parcel['draft']}"
        return f"speculation: {{drafter: cascade, {ngram_tokens}, {rest}}}"
    return f"draft: null, speculation: {{{ngram_tokens}}}"


def ladders_record(
    temperature: float,
    levels: Sequence[Level],
    agreements: Agreements,
    ladders: Sequence[Ladder],
) -> dict[str, Any]:
    """A plan of a hierarchy as JSON."""
    return {
        "temperature": temperature,
        "levels": [asdict(level) for level in levels],
        "agreements": {" → ".join(pair): share for pair, share in agreements.items()},
        "predicted": [asdict(ladder) for ladder in ladders],
        "advice": advice_on(ladders),
    }


def comparison_record(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON."""
    row = found.row
    return {
        **row.model_dump(include={"system", "where", "temperature", "threads", "rows", "gamma"}),
        "measured_tokens_per_s": found.measured,
        "predicted_tokens_per_s": found.predicted,
        "error": found.error,
        "medians": found.medians,
        "measured_median": row.tokens_per_s,
        "predicted_median": found.predicted_median,
        "measured_tokens_per_step": row.tokens_per_step,
        "predicted_tokens_per_step": found.tokens_per_step,
        "predicted_target_ms": found.target_ms,
        "draft_ms": found.draft_ms,
        "draft_from": found.draft_from,
        "assumed": list(found.assumed),
    }


def prediction_record(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON."""
    return {
        "placement": prediction.scene.placement.model_dump(),
        "problem": None,
        "predicted": [asdict(outcome) for outcome in prediction.outcomes],
    }


def impossible_record(scene: Scene) -> dict[str, Any]:
    return {
        "placement": scene.placement.model_dump(),
        "problem": scene.problem,
        "predicted": [],
    }
