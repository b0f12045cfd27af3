"""The picture of many streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.names import name_of
from bench.streams_figures import ContextCost, StreamsRow

mpl.use("Agg")

_OURS, _OTHERS = "#1f6f8b", "#b0b7bd"
_DPI = 150


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


def _save(figure: Figure, file: Path) -> Path:
    figure.tight_layout()
    figure.savefig(file, dpi=_DPI)
    return file
