"""`scripts/gpu_check`: it says what it found, and fails when something is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from real_pair import DRAFT
from torch import Tensor
from typer.testing import CliRunner

from card.engines.torch import decoder as eager_decoder
from card.engines.torch.attention import TileTensors, attend
from gpu import command
from gpu.arithmetic import check_rows
from gpu.command import app
from gpu.models import TINY, Pair
from gpu.phases import USUAL

DRAFT_ALONE = Pair("bundled", DRAFT, DRAFT)
"""Its own target: a tenth of the work, the same code."""


@pytest.fixture(autouse=True)
def _small_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "bundled_pair", lambda: DRAFT_ALONE)


def test_on_a_processor_everything_runs_and_is_written_down(tmp_path: Path) -> None:
    patient = ["--limit-s", "900", "--total-s", "1800"]
    result = CliRunner().invoke(app, ["--device", "cpu", "--results", str(tmp_path), *patient])
    lines = result.output.splitlines()
    assert lines[-1].startswith("PASS: 7 of 7 checks on cpu"), result.output
    assert "says nothing of one" in lines[-1]
    (file,) = tmp_path.iterdir()
    written = json.loads(file.read_text())
    assert written["verdict"] == lines[-1]
    assert [phase["name"] for phase in written["phases"]] == list(USUAL)
    (pair,) = written["speeds"]
    assert "asked 0.8" in pair
    assert [step["rows"] for step in written["steps"][pair]] == [1, 8, 32, 64] * 2
    found: dict[str, set[str]] = {}
    for speed in written["speeds"][pair]:
        found.setdefault(speed["demand"], set()).add(speed["system"])
        assert speed["equal"]
    either = {"CARD", "auto", "draft-verify, γ = 4"}
    systems = {"autoregressive", "PEARL, γ = 4", *either}
    subtrees = {f"{name}, subtree" for name in either}
    demands = ["one stream, greedy", "2 streams, greedy", "one stream, temperature 0.8"]
    assert found == dict.fromkeys(demands, systems) | {demands[0]: systems | subtrees}
    assert len(written["peers"][pair]) == 2


def test_check_of_rows_fails_when_attention_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any) -> Tensor:
        unmasked = replace(tile, hidden=torch.zeros_like(tile.hidden))
        return attend(query, keys, values, unmasked, *more) * 1.25

    monkeypatch.setattr(eager_decoder, "attend", wrong)
    rows, _ = check_rows(DRAFT_ALONE, "cpu", replace(TINY, context=200))
    assert not rows.passed
