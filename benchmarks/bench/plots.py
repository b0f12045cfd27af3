"""Pictures of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.extremes import Observed, Timeline, Variant
from bench.names import label, name_of
from bench.standings import Standing
from bench.streams_figures import ContextCost, StreamsRow

mpl.use("Agg")

_OURS, _OTHERS = "#1f6f8b", "#b0b7bd"
_TARGET, _DRAFT = "#1f6f8b", "#e09f3e"
_DPI = 150
_HEADROOM = 1.08
"""Of an axis above its highest point, whose marker the frame would cut."""
_LENGTHS = {0.25: "the first quarter of a second", 2.0: "two seconds"}
"""What a timeline shows, in seconds and in words."""


def plot_speeds(file: Path, standings: Sequence[Standing]) -> Path:
    """Tokens/s by system with quartiles; `standings` are the best setting of each."""
    temperatures = list(dict.fromkeys(s.temperature for s in standings))
    figure = Figure(figsize=(5.5 * len(temperatures), 0.4 * len(standings) / len(temperatures) + 2))
    panels: Sequence[Axes] = figure.subplots(1, len(temperatures), squeeze=False)[0]
    for axes, temperature in zip(panels, temperatures, strict=True):
        shown = [s for s in standings if s.temperature == temperature]
        shown.sort(key=lambda s: s.tokens_per_s)
        speeds = [s.tokens_per_s for s in shown]
        low = [max(0.0, s.tokens_per_s - s.tokens_per_s_quartiles[0]) for s in shown]
        high = [max(0.0, s.tokens_per_s_quartiles[1] - s.tokens_per_s) for s in shown]
        colours = [_colour(s) for s in shown]
        axes.barh([_bar_of(s) for s in shown], speeds, color=colours, xerr=[low, high])
        axes.margins(y=0.01)
        axes.set_title(f"temperature {temperature:g}")
        axes.set_xlabel("tokens/s (median, quartiles)")
    return _save(figure, file)


def plot_timeline(file: Path, timelines: Sequence[Timeline]) -> Path:
    """When each model was busy: close by, then all two seconds."""
    figure = Figure(figsize=(11, 1.6 * 2 * len(timelines) + 0.6))
    panels = figure.subplots(2 * len(timelines), 1, squeeze=False)[:, 0]
    for place, timeline in enumerate(timelines):
        for axes, until in zip(panels[2 * place :], _LENGTHS, strict=False):
            for height, (passes, colour) in enumerate(
                ((timeline.draft, _DRAFT), (timeline.target, _TARGET))
            ):
                bars = [(begin, end - begin) for begin, end in passes if begin < until]
                edge = {"edgecolors": "white", "linewidth": 0.4 if until < 1 else 0}
                axes.broken_barh(bars, (height + 0.1, 0.8), facecolors=colour, **edge)
            busy = [timeline.busy(passes) for passes in (timeline.draft, timeline.target)]
            axes.set_yticks([0.5, 1.5], [f"draft {busy[0]:.0%}", f"target {busy[1]:.0%}"])
            axes.set_xlim(0, until)
            axes.set_ylim(0, 2)
            axes.set_title(_title_of(timeline, until), fontsize=9, loc="left")
    panels[-1].set_xlabel("seconds; beside the models: share of the two seconds that each was busy")
    return _save(figure, file)


def plot_committed(file: Path, observed: Observed) -> Path:
    """Histogram of what CARD's target steps commit."""
    figure = Figure(figsize=(6, 3.5))
    axes = figure.subplots()
    steps = sum(observed.committed.values())
    accepted = [committed - 1 for committed in observed.committed]
    axes.bar(accepted, [count / steps for count in observed.committed.values()], color=_OURS)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("accepted candidates of a target step")
    axes.set_ylabel("share of steps")
    axes.set_title(f"CARD, {steps} steps")
    return _save(figure, file)


def plot_sweep(file: Path, variants: Sequence[Variant]) -> Path:
    """Tokens/s against each setting that was swept."""
    settings = list(dict.fromkeys(variant.setting for variant in variants))
    figure = Figure(figsize=(3.2 * len(settings), 3.2))
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        chosen = [variant for variant in variants if variant.setting == setting]
        values, speeds = [v.value for v in chosen], [v.tokens_per_s for v in chosen]
        axes.plot(values, speeds, marker="o", color=_OURS)
        axes.set_xlabel(setting)
        if isinstance(values[0], str):
            axes.margins(x=0.25)  # names are wider than numbers, and the outer ones would be cut
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    panels[0].set_ylabel("tokens/s")
    panels[0].set_ylim(0, _HEADROOM * max(variant.tokens_per_s for variant in variants))
    return _save(figure, file)


def plot_streams(file: Path, rows: Sequence[StreamsRow], costs: Sequence[ContextCost]) -> Path:
    """Aggregate tokens/s and token latency by streams; a step's cost by context."""
    figure = Figure(figsize=(12, 3.6))
    speed, latency, cost = figure.subplots(1, 3)
    for system, colour in (("autoregressive", _OTHERS), ("card", _OURS)):
        found = [row for row in rows if row.system == system]
        streams = [row.streams for row in found]
        name = name_of(system)
        speed.plot(streams, [r.tokens_per_s for r in found], marker="o", color=colour, label=name)
        latency.plot(streams, [r.p50_ms for r in found], marker="o", color=colour, label=name)
        latency.plot(streams, [r.p99_ms for r in found], marker="^", ls=":", color=colour)
    for axes in (speed, latency):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("streams")
        axes.legend()
    speed.set_ylabel("tokens/s, all streams")
    latency.set_ylabel("ms per token: p50, dotted p99")
    for rows_of_pass in sorted({found.rows for found in costs}):
        chosen = [found for found in costs if found.rows == rows_of_pass]
        contexts, steps = [c.context for c in chosen], [c.step_ms for c in chosen]
        cost.plot(contexts, steps, marker="o", label=f"{rows_of_pass} rows")
    cost.set_xlabel("context, tokens")
    cost.set_ylabel("ms per target step")
    cost.set_ylim(bottom=0)
    cost.legend()
    return _save(figure, file)


def _bar_of(standing: Standing) -> str:
    """What its bar is called: several systems stand here in process and through gRPC."""
    return label(standing) + (", through gRPC" if standing.where == "grpc" else "")


def _title_of(timeline: Timeline, until: float) -> str:
    """System and setting in words, and how much of the time is shown."""
    gamma = timeline.gamma
    setting = ""
    if gamma is not None:
        setting = f", {gamma} draft pass{'es' * (gamma > 1)} before each verification"
    return f"{name_of(timeline.system)}{setting}: target and draft, {_LENGTHS[until]}"


def _colour(standing: Standing) -> str:
    if standing.system == "draft_alone":
        return _DRAFT
    return _OTHERS if standing.where == "peer" else _OURS


def _save(figure: Figure, file: Path) -> Path:
    figure.tight_layout()
    figure.savefig(file, dpi=_DPI)
    return file
