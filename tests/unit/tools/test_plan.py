"""The arithmetic of `scripts/plan`, against closed forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planning import (
    Pair,
    PlanError,
    app,
    curve_of,
    estimates,
    level_chances,
    parallel,
    rank_chances,
    read_costs,
    serial,
)

FLAT = Pair({1: 10.0, 64: 10.0}, {1: 1.0, 64: 1.0})
"""Rows cost nothing."""


def chances_of(agreement: float, width: int = 1, levels: int = 40) -> list[float]:
    return level_chances(rank_chances(agreement), width, levels)


@pytest.mark.parametrize("agreement", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("drafted", [1, 4, 12])
def test_serial_chain_commits_the_closed_form_of_tokens_and_takes_all_passes(
    agreement: float, drafted: int
) -> None:
    found = serial(FLAT, chances_of(agreement), 1, drafted)
    assert found.tokens == pytest.approx((1 - agreement ** (drafted + 1)) / (1 - agreement))
    assert found.ms == pytest.approx(drafted * 1.0 + 10.0)
    assert found.rows == 1 + drafted


@pytest.mark.parametrize("agreement", [0.3, 0.8])
@pytest.mark.parametrize("verified", [1, 4])
def test_parallel_chain_commits_the_closed_form_when_the_draft_is_fast(
    agreement: float, verified: int
) -> None:
    """Behind a loss one pass verifies nothing, then every pass verifies a whole chain."""
    found = parallel(FLAT, chances_of(agreement), 1, verified, depth=64)
    goes_on = agreement / (1 - agreement ** (verified + 1))
    assert found.tokens == pytest.approx(1 / (1 - agreement) / (1 + goes_on))
    assert found.ms == pytest.approx(10.0)


def test_estimates_are_the_best_depths_of_each_way() -> None:
    alone, *found = estimates(FLAT, 0.8)
    assert (alone.tokens, alone.ms) == (1.0, 10.0)
    named = {(one.pacing, one.shape): one for one in found}
    assert set(named) == {(p, s) for p in ("serial", "parallel") for s in ("chain", "tree of 4")}
    best = max(serial(FLAT, chances_of(0.8), 1, k).tokens_per_s for k in range(1, 32))
    assert named["serial", "chain"].tokens_per_s == pytest.approx(best)
    with pytest.raises(PlanError, match="--rows is 4"):
        estimates(FLAT, 0.8, rows=4)


BENCH = {
    "target_row_costs_ms": {"1": 9.0, "8": 16.0},
    "draft_row_costs_ms": {"1": 1.0},
    "target_alone_share": 0.8,
    "rows": [
        {"system": "card", "agreement": 0.66},
        {"system": "card", "agreement": 0.51},
        {"system": "autoregressive", "agreement": None},
    ],
}
GPU = {
    "steps": {
        "a pair": [
            {"model": "target", "rows": 1, "ms": 5.0},
            {"model": "draft", "rows": 1, "ms": 0.9},
        ]
    },
    "speeds": {"a pair": [{"system": "CARD", "contention": 1.25}]},
}


def test_measured_costs_are_read_from_a_benchmark_and_from_a_check_of_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(BENCH))
    pair, agreements = read_costs(file)
    assert (pair.target_ms, pair.draft_ms) == ({1: 9.0, 8: 16.0}, {1: 1.0})
    assert pair.alone.ms == pytest.approx(7.2)
    assert agreements == [0.66, 0.51]
    file.write_text(json.dumps(GPU))
    pair, agreements = read_costs(file)
    # While a pass of the target takes 1.25 ms longer, the draft has 1.25 ms.
    assert 1.25 * 5.0 / (pair.draft_beside * 0.9) == pytest.approx(1.25 / 0.9)
    assert agreements == []
    file.write_text("{}")
    with pytest.raises(PlanError, match=r"scripts/gpu_check"):
        read_costs(file)


@pytest.mark.parametrize("text", ["", "5x", "1:", "0:5.0", "-1", "1:2:3"])
def test_cost_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="is no cost"):
        curve_of(text)


def test_command_prints_a_row_for_each_way_and_says_that_it_is_arithmetic() -> None:
    given = ["--target-ms", "1:5.0,8:5.2", "--draft-ms", "0.95", "--agreement", "0.8"]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0
    assert "no measurement" in shown.output
    rows = [line.split()[:3] for line in shown.output.splitlines() if line.split()[:1] == ["0.8"]]
    assert [row[1] for row in rows] == ["none", "serial", "parallel", "serial", "parallel"]
    refused = CliRunner().invoke(app, ["--target-ms", "5"])
    assert refused.exit_code == 2
    assert "--draft-ms" in refused.stderr
