"""The decoders of an engine, and which of them takes a pass."""

from __future__ import annotations

from collections.abc import Callable

from card.engines.interface import EngineError
from card.engines.layout import Pass, Stretch
from card.engines.openvino.compiled import CompiledDecoder, Decoders
from card.engines.openvino.graph import ANY_ROWS
from card.engines.openvino.runner import Runner
from card.engines.openvino.shapes import FixedRows, Padding, RowPadding
from card.engines.row_costs import RowCosts


class Runners:
    """One runner for each decoder.

    decoders     at least one
    make_runner  of a decoder and the padding of its passes
    """

    def __init__(
        self, decoders: Decoders, make_runner: Callable[[CompiledDecoder, Padding], Runner]
    ) -> None:
        self._any = None
        if ANY_ROWS in decoders:
            self._any = make_runner(decoders[ANY_ROWS], RowPadding(None))
        self._fixed = [
            (rows, make_runner(decoders[rows], FixedRows(rows)))
            for rows in sorted(decoders)
            if rows != ANY_ROWS
        ]

    def of(self, this: Pass) -> Runner:
        """What a pass takes least time with. Raises `EngineError` where nothing takes it."""
        attends_together = bool(this.groups)
        if isinstance(this.destination, Stretch) or not attends_together:
            for rows, runner in self._fixed:
                if len(this.tokens) <= rows:
                    return runner
        if self._any is None:
            raise EngineError(f"no decoder takes a pass of {len(this.tokens)} rows")
        return self._any

    def know_costs(self, costs: RowCosts) -> None:
        """What passes of the decoder that takes any were measured to cost."""
        if self._any is not None:
            self._any.pad_by(RowPadding(costs))
