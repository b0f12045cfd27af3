"""`scripts/gpu_check`: it says what it found, and fails when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from real_pair import DRAFT
from torch import Tensor
from typer.testing import CliRunner

from card.engines.torch import decoder as eager_decoder
from card.engines.torch.captured.device import Devices
from card.engines.torch.decoder import TileTensors, attend
from gpu import command
from gpu.checks import check_rows
from gpu.command import app
from gpu.models import TINY, Pair
from gpu.phases import PHASES, Job
from gpu.report import Found

DRAFT_ALONE = Pair("bundled", DRAFT, DRAFT)
"""Its own target: a tenth of the work, the same code."""


@pytest.fixture(autouse=True)
def _small_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "bundled_pair", lambda: DRAFT_ALONE)


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (Devices("2.13.0+cpu", None, ()), "without CUDA"),
        (Devices("2.13.0", "12.9", ()), "no CUDA device"),
    ],
)
def test_check_when_there_is_no_gpu_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, devices: Devices, named: str
) -> None:
    monkeypatch.setattr(Devices, "seen", lambda: devices)
    result = CliRunner().invoke(app)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert named in result.output
    assert "--device cpu" in result.output


def test_check_on_a_processor_runs_every_phase_and_writes_its_findings(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--device", "cpu", "--results", str(tmp_path)])
    lines = result.output.splitlines()
    assert lines[-1].startswith("PASS: 7 of 7 checks on cpu"), result.output
    assert "says nothing of one" in lines[-1]
    (file,) = tmp_path.iterdir()
    written = json.loads(file.read_text())
    assert written["verdict"] == lines[-1]
    assert [phase["name"] for phase in written["phases"]] == list(PHASES)
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


def test_limits_when_the_processor_is_slow_are_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "slowness", lambda device: 3.0)
    monkeypatch.setitem(PHASES, "8b", _ends_at_once)
    result = CliRunner().invoke(app, ["--device", "cpu", "--only", "8b"])
    assert "8b: begins, for at most 720 s" in result.output
    result = CliRunner().invoke(app, ["--device", "cpu", "--only", "8b", "--limit-s", "50"])
    assert "8b: begins, for at most 50 s" in result.output


def _ends_at_once(job: Job) -> Iterator[Found]:
    yield from ()


def test_check_of_rows_when_attention_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any) -> Tensor:
        unmasked = replace(tile, hidden=dict.fromkeys(tile.hidden, torch.tensor(False)))
        return attend(query, keys, values, unmasked, *more) * 1.25

    monkeypatch.setattr(eager_decoder, "attend", wrong)
    rows, _ = check_rows(DRAFT_ALONE, "cpu", replace(TINY, context=200))
    assert not rows.passed
