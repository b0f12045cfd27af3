"""`scripts/plan`: what speculation gains at an agreement, by arithmetic alone.

Nothing here is measured or simulated. A candidate is right with the same chance at every place,
whatever the candidates before it were, and nothing besides the passes takes time. Real texts have
easy and hard stretches, and loops take time around their passes, so a measurement gives less.

serial    draft-then-verify: the draft makes k passes, then the target verifies what they made
parallel  CARD: the draft works during each pass of the target; what it made behind a token that
          the target does not choose is lost
chain     each pass of the draft adds the draft's first choice
tree      each pass of the draft adds a level: the `width` likeliest nodes below the level before
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from card.engines.interface import pass_cost_ms
from card.speculation.control.interface import CONTENTION
from refusal import refuse

AGREEMENTS = (0.6, 0.75, 0.9)
RANK_EXPONENT = 0.41
"""The share of tokens that are not among the best n candidates falls with n to this power: 0.56 of
the bundled draft's first choices are right, and 0.75 of its best four hold the right one. That it
falls so is known of other pairs too (Sequoia, arXiv 2402.12374)."""
_RANKS = 64
_ALL_BUT_SURE, _RARE, _SOME = 0.999, 1e-9, 1.001


class PlanError(ValueError):
    """An input cannot be used; the message says which, why, and what is allowed."""


@dataclass(frozen=True)
class Pair:
    """The costs of passes of two models.

    target_ms, draft_ms  milliseconds of a pass by its rows
    alone_share          share of its time that a pass of one row takes while the draft is idle
    beside               by how much passes of the target take longer while both models work
    draft_beside         by how much those of the draft do
    """

    target_ms: Mapping[int, float]
    draft_ms: Mapping[int, float]
    alone_share: float = 1.0
    beside: float = 1.0
    draft_beside: float = 1.0

    @property
    def alone(self) -> Estimate:
        """Decoding without a draft."""
        ms = self.alone_share * pass_cost_ms(self.target_ms, 1)
        return Estimate("none", "none", 0, 1, 1.0, ms)


@dataclass(frozen=True)
class Estimate:
    """One way to decode.

    levels  that a pass of the target verifies at most
    rows    of such a pass
    tokens  committed by a pass of the target, on average
    ms      from one pass of the target to the next, on average
    """

    pacing: str
    shape: str
    levels: int
    rows: int
    tokens: float
    ms: float

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.ms


def rank_chances(agreement: float, exponent: float = RANK_EXPONENT) -> list[float]:
    """The chance of the draft's first, second, ... choice to be the target's token."""
    chances = [agreement]
    for rank in range(2, _RANKS + 1):
        missed, still = ((1.0 - agreement) * n**-exponent for n in (rank - 1, rank))
        chances.append(min(chances[-1], missed - still))
    return chances


def exponent_of(agreement: float, among: int, share: float) -> float:
    """The exponent with which `share` of all tokens are among the best `among` choices.

    Raises `PlanError` if no draft is like that.
    """
    if among < 2 or not agreement <= share < 1.0:
        raise PlanError(
            f"--among {among} {share:g}: needs a count of at least 2 and a share from the "
            f"agreement ({agreement:g}) up to below 1"
        )
    return log((1.0 - agreement) / (1.0 - share)) / log(among)


def level_chances(ranks: Sequence[float], width: int, levels: int) -> list[float]:
    """The chance of each level of a tree to hold the text.

    Every level has the `width` likeliest nodes below the level before. Of a chain, which has a
    width of 1, level i holds the text with the chance of i right first choices.
    """
    paths, found = [1.0], list[float]()
    for _ in range(levels):
        below = (path * chance for path in paths for chance in ranks[:width])
        paths = heapq.nlargest(width, below)
        found.append(sum(paths))
    return found


def serial(pair: Pair, chances: Sequence[float], width: int, levels: int) -> Estimate:
    """Draft-then-verify: `levels` passes of the draft, then one of the target.

    A chain commits (1 - a^(levels + 1)) / (1 - a) tokens a step at an agreement of a.
    """
    rows = 1 + levels * width
    draft_ms = pass_cost_ms(pair.draft_ms, 1)
    draft_ms += (levels - 1) * pass_cost_ms(pair.draft_ms, width)
    ms = draft_ms + pass_cost_ms(pair.target_ms, rows)
    return Estimate("serial", _shape(width), levels, rows, 1.0 + sum(chances[:levels]), ms)


def parallel(pair: Pair, chances: Sequence[float], width: int, levels: int, depth: int) -> Estimate:
    """CARD: the draft makes as many levels as there is time for during each pass of the target.

    Tokens and milliseconds are counted from one loss of the tree to the next. Behind a loss the
    target has nothing to verify. The tree outlives a pass if it holds all that the pass commits.

    depth  levels that the draft runs ahead at most
    """
    ahead, chance, passes, tokens, ms = 0.0, 1.0, 0.0, 0.0, 0.0
    draft_ms = pair.draft_beside * pass_cost_ms(pair.draft_ms, width)
    while ahead >= 0.0 and chance > _RARE:
        verified = min(levels, int(ahead))
        pass_ms = pair.beside * pass_cost_ms(pair.target_ms, 1 + verified * width)
        passes += chance
        tokens += chance * (1.0 + sum(chances[:verified]))
        ms += chance * pass_ms
        chance *= chances[verified]
        # A negative number: the target has committed more than the draft has made.
        ahead = min(depth, ahead + pass_ms / draft_ms) - verified - 1
    rows = 1 + levels * width
    return Estimate("parallel", _shape(width), levels, rows, tokens / passes, ms / passes)


def estimates(
    pair: Pair,
    agreement: float,
    *,
    exponent: float = RANK_EXPONENT,
    width: int = 4,
    depth: int = 32,
    rows: int = 32,
) -> list[Estimate]:
    """Decoding alone, and each pacing with a chain and a tree at the depth that gives most.

    width  nodes of a level of the tree
    rows   of a pass of the target at most
    """
    ranks = rank_chances(min(agreement, _ALL_BUT_SURE), exponent)
    found = [pair.alone]
    for nodes in (1, width):
        most = min(depth, (rows - 1) // nodes)
        if most < 1:
            raise PlanError(f"--rows is {rows}; a level of {nodes} nodes needs {1 + nodes}")
        chances = level_chances(ranks, nodes, most + 1)
        levels = range(1, most + 1)
        found.append(_best(serial(pair, chances, nodes, count) for count in levels))
        found.append(_best(parallel(pair, chances, nodes, count, depth) for count in levels))
    return found


def _best(tried: Iterable[Estimate]) -> Estimate:
    return max(tried, key=lambda estimate: estimate.tokens_per_s)


def _shape(width: int) -> str:
    return "chain" if width == 1 else f"tree of {width}"


def read_costs(file: Path) -> tuple[Pair, list[float]]:
    """What a file of `./scripts/bench` or `./scripts/gpu_check` says of costs, and of agreement at
    each temperature. Raises `PlanError` saying what is wrong with the file.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"--costs {file} cannot be read: {error}") from error
    try:
        if "steps" in content:
            return _of_gpu_check(content)
        return _of_bench(content)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise PlanError(
            f"--costs {file} holds no costs of passes ({error!r}); needed is the JSON of "
            "./scripts/bench suite, ./scripts/bench family or ./scripts/gpu_check"
        ) from error


def _of_bench(content: Mapping[str, Any]) -> tuple[Pair, list[float]]:
    target, draft = (
        {int(rows): float(ms) for rows, ms in content[f"{role}_row_costs_ms"].items()}
        for role in ("target", "draft")
    )
    found = (row["agreement"] for row in content["rows"] if row["system"] == "card")
    agreements = list(dict.fromkeys(agreement for agreement in found if agreement is not None))
    return Pair(target, draft, content["target_alone_share"], CONTENTION, CONTENTION), agreements


def _of_gpu_check(content: Mapping[str, Any]) -> tuple[Pair, list[float]]:
    """The first pair of the file. Its models share one device and take turns on it: the draft has
    the time by which passes of the target are longer."""
    name, steps = next(iter(content["steps"].items()))
    target, draft = (
        {step["rows"]: step["ms"] for step in steps if step["model"] == role}
        for role in ("target", "draft")
    )
    speeds = content["speeds"].get(name, ())
    found = (speed["contention"] for speed in speeds if speed["system"] == "CARD")
    beside = max(_SOME, next(found, CONTENTION))
    return Pair(target, draft, 1.0, beside, beside / (beside - 1.0)), []


def curve_of(text: str) -> dict[int, float]:
    """Milliseconds by rows of `5.0`, or of `1:4.98,8:5.02,32:5.78`. Raises `PlanError`."""
    try:
        parts = [part.rpartition(":") for part in text.split(",")]
        curve = {int(rows or 1): float(ms) for rows, _, ms in parts}
    except ValueError:
        curve = {}
    if not curve or min(curve) < 1 or min(curve.values()) <= 0.0:
        raise PlanError(f"{text!r} is no cost: write milliseconds (5.0), or by rows (1:5.0,8:5.2)")
    return curve


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def plan(
    costs: Annotated[
        Path | None,
        typer.Option(help="Measured costs: JSON of ./scripts/bench or ./scripts/gpu_check."),
    ] = None,
    target_ms: Annotated[
        str | None,
        typer.Option(help="Milliseconds of a pass of the target: 5.0, or by rows 1:5.0,8:5.2."),
    ] = None,
    draft_ms: Annotated[str | None, typer.Option(help="The same of the draft.")] = None,
    agreement: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of tokens that are the draft's first choice. May be repeated.",
            show_default="that of --costs, or 0.6, 0.75, 0.9",
        ),
    ] = None,
    among: Annotated[
        tuple[int, float] | None,
        typer.Option(
            help="Count and share: so many tokens are among the draft's best COUNT choices.",
            show_default="as the bundled draft's fall",
        ),
    ] = None,
    beside: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="By how much passes take longer while both models work; 1: each has a device.",
            show_default=f"that of --costs, or {CONTENTION:g}",
        ),
    ] = None,
    width: Annotated[int, typer.Option(min=2, help="Nodes of a tree's level.")] = 4,
    depth: Annotated[int, typer.Option(min=1, help="Levels that are drafted at most.")] = 32,
    rows: Annotated[int, typer.Option(min=2, help="Most rows of a pass of the target.")] = 32,
) -> None:
    """Tokens a step and speed-up at an agreement and costs: arithmetic, no measurement."""
    try:
        pair, known = _given(costs, target_ms, draft_ms, beside)
        title = "Arithmetic, no measurement: tokens and ms of a step of the target"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
        for heading in _HEADINGS:
            justify: Literal["left", "right"] = "right" if heading in _HEADINGS[3:] else "left"
            table.add_column(heading, justify=justify, no_wrap=True)
        for share in agreement or known or AGREEMENTS:
            exponent = RANK_EXPONENT if among is None else exponent_of(share, *among)
            found = estimates(pair, share, exponent=exponent, width=width, depth=depth, rows=rows)
            for estimate in found:
                table.add_row(*_cells(share, estimate, found[0]))
            table.add_section()
    except PlanError as error:
        refuse(error)
    Console().print(table)


def _given(
    costs: Path | None, target_ms: str | None, draft_ms: str | None, beside: float | None
) -> tuple[Pair, list[float]]:
    """The pair, and the agreements that its file tells. Raises `PlanError`."""
    if costs is None and (target_ms is None or draft_ms is None):
        raise PlanError("costs are missing: give --costs FILE, or --target-ms and --draft-ms")
    pair, agreements = Pair({}, {}, 1.0, CONTENTION, CONTENTION), list[float]()
    if costs is not None:
        pair, agreements = read_costs(costs)
    if target_ms is not None:
        pair = replace(pair, target_ms=curve_of(target_ms), alone_share=1.0)
    if draft_ms is not None:
        pair = replace(pair, draft_ms=curve_of(draft_ms))
    if beside is not None:
        pair = replace(pair, beside=beside, draft_beside=beside)
    return pair, agreements


_HEADINGS = (
    "agreement", "pacing", "shape", "levels", "rows", "tokens", "ms", "tokens/s", "× alone",
)  # fmt: skip


def _cells(agreement: float, estimate: Estimate, alone: Estimate) -> list[str]:
    gain = estimate.tokens_per_s / alone.tokens_per_s
    figures = estimate.tokens, estimate.ms, estimate.tokens_per_s, gain
    counts = estimate.levels, estimate.rows
    names = f"{agreement:.3g}", estimate.pacing, estimate.shape
    return [*names, *map(str, counts), *(f"{figure:.2f}" for figure in figures)]


if __name__ == "__main__":
    app(prog_name="scripts/plan")
