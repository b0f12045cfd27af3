"""A run of perf_analyzer in vain differs from one that failed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loading.perf_analyzer import NothingMeasuredError, PerfAnalyzerError, measure


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
    assert ("--seconds" in str(failed.value)) == in_vain
