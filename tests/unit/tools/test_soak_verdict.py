"""The soak's verdict can be a bad one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loading.clients import Tally
from loading.held import MEBIBYTE, Sample
from loading.perf_analyzer import NothingMeasuredError, PerfAnalyzerError, measure
from loading.soak import Observed

LONG_S = 600.0
AT_REST = Sample(0.0, {"card": 60 * MEBIBYTE}, {"card": 9})


def found_nothing() -> Observed:
    """What a sound server shows: memory that grew at first and then stayed as it is."""
    found = Observed(Tally(compared=10), AT_REST, AT_REST)
    for second in range(int(LONG_S)):
        held = {"card": 60 * MEBIBYTE + min(second, 100) * MEBIBYTE}
        found.samples.append(Sample(float(second), held, {"card": 30}))
    return found


GROWING = [Sample(float(s), {"card": int(s * 0.025 * MEBIBYTE)}, {}) for s in range(int(LONG_S))]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({}, []),
        ({"samples": GROWING}, ["card grows by 1.50 MiB"]),
        ({"busy": (1.0, 0.0)}, ["1 slots in use"]),
        ({"busy": (0.0, 1.0)}, ["1 requests queued"]),
        ({"rested": replace(AT_REST, descriptors={"card": 12})}, ["card holds 12 file desc"]),
        ({"tally": Tally(compared=1, failures=["another text"])}, ["another text"]),
        ({"tally": Tally(compared=0)}, ["nothing was compared"]),
        ({"incidents": ["a process died"]}, ["a process died"]),
    ],
)
def test_soak_when_something_is_wrong_fails_and_names_it(
    spoilt: dict[str, Any], said: list[str]
) -> None:
    found = found_nothing()
    for name, value in spoilt.items():
        setattr(found, name, value)
    lines = found.judge(LONG_S)
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    ("said", "in_vain"),
    [("No valid requests recorded within time interval.", True), ("connection refused", False)],
)
@pytest.mark.parametrize("left", [(), ("001.csv", "001.json")], ids=["empty", "used"])
def test_measurement_when_no_request_ended_differs_from_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, in_vain: bool, left: tuple[str, ...]
) -> None:
    program = tmp_path / "bin/perf_analyzer"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for name in left:  # of a run before, in the same folder
        (tmp_path / name).write_text("figures")
    with pytest.raises(PerfAnalyzerError, match=said) as failed:
        measure("localhost:1", [{}], 1, 1.0, tmp_path)
    assert isinstance(failed.value, NothingMeasuredError) == in_vain
