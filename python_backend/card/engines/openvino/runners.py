"""The graphs of one number of threads, and which of them takes a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import openvino as ov

from card.engines.layout import Pass, Stretch
from card.engines.openvino.runner import Runner
from card.engines.openvino.shapes import FixedRows, Padding, RowPadding
from card.engines.row_costs import RowCosts

ANY_ROWS = 0
"""Key of the graph that takes any pass."""

Graphs = Mapping[int, ov.CompiledModel]
"""Compiled graphs by the rows of one session that they take."""


class Runners:
    """One runner for each graph.

    compiled     `ANY_ROWS` must be among them
    make_runner  of a graph and the padding of its passes
    """

    def __init__(
        self, compiled: Graphs, make_runner: Callable[[ov.CompiledModel, Padding], Runner]
    ) -> None:
        self._any = make_runner(compiled[ANY_ROWS], RowPadding(None))
        self._fixed = [
            (rows, make_runner(compiled[rows], FixedRows(rows)))
            for rows in sorted(compiled)
            if rows != ANY_ROWS
        ]

    def of(self, this: Pass) -> Runner:
        """What a pass takes least time with."""
        if isinstance(this.destination, Stretch):
            for rows, runner in self._fixed:
                if len(this.tokens) <= rows:
                    return runner
        return self._any

    def know_costs(self, costs: RowCosts) -> None:
        """What passes of the graph that takes any were measured to cost."""
        self._any.pad_by(RowPadding(costs))
