"""Passes are measured briefly where they are slow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace

import pytest

from card.engines import calibration
from card.engines.calibration import measure_row_costs
from card.engines.interface import SequenceTokens
from card.engines.options import EngineOptions

ROWS = (1, 2, 4, 8, 16, 32, 64)


class SlowEngine:
    """Its passes take `row_s` for each row, of a clock that runs in its passes alone."""

    context, vocabulary = 512, 100
    costed_rows = ROWS
    options = EngineOptions(context=512, sessions=1)

    def __init__(self, row_s: float) -> None:
        self.row_s = row_s
        self.now_s = 0.0
        self._sessions = count()

    def clock(self) -> float:
        return self.now_s

    def open_session(self) -> int:
        return next(self._sessions)

    def close_session(self, session: int) -> None: ...

    def commit_kv(self, session: int, rows: Sequence[int]) -> None: ...

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> None:
        self.now_s += self.row_s * sum(len(rows.tokens) for rows in batch)


@pytest.mark.parametrize(("row_s", "is_brief"), [(0.1, True), (0.001, False)])
def test_costs_of_all_rows_are_known_when_few_were_measured(
    monkeypatch: pytest.MonkeyPatch, row_s: float, is_brief: bool
) -> None:
    engine = SlowEngine(row_s)
    clock = SimpleNamespace(monotonic=engine.clock, perf_counter=engine.clock)
    monkeypatch.setattr(calibration, "time", clock)
    costs = measure_row_costs(engine)  # type: ignore[arg-type]
    assert costs.pass_ms == pytest.approx({rows: 1e3 * row_s * rows for rows in ROWS})
    whole_s = row_s * (256 + 3 * sum(ROWS))
    assert (engine.now_s < whole_s / 4) is is_brief
