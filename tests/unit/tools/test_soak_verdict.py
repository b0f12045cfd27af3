"""The soak's verdict can be a bad one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from loading.clients import Tally
from loading.folder import results_folder
from loading.perf_analyzer import (
    NothingMeasuredError,
    PerfAnalyzerError,
    _asked_directly,
    _texts_ns,
    measure,
)
from loading.resources import MEBIBYTE, Sample
from loading.soak import Observed

LONG_S = 600.0
AT_REST = Sample(0.0, {"card": 60 * MEBIBYTE}, {"card": 9})


def found_nothing() -> Observed:
    """What a sound server shows: memory that grew at first and then stayed as it is."""
    found = Observed(Tally(compared=10), AT_REST)
    for second in range(int(LONG_S)):
        held = {"card": 60 * MEBIBYTE + min(second, 100) * MEBIBYTE}
        found.samples.append(Sample(float(second), held, {"card": 30}))
    return found


def grow(found: Observed) -> None:
    found.samples = [
        replace(sample, bytes_held={"card": int(sample.seconds / 60 * 1.5 * MEBIBYTE)})
        for sample in found.samples
    ]


def keep_a_slot(found: Observed) -> None:
    found.busy = (1.0, 0.0)


def keep_a_request_queued(found: Observed) -> None:
    found.busy = (0.0, 1.0)


def keep_a_descriptor(found: Observed) -> None:
    found.rested = replace(AT_REST, descriptors={"card": 12})


def answer_another_text(found: Observed) -> None:
    found.tally.failures.append("another text than its reference")


def answer_nothing(found: Observed) -> None:
    found.tally.compared = 0


def lose_a_process(found: Observed) -> None:
    found.incidents.append("a process died under load")


def test_a_sound_server_passes() -> None:
    assert found_nothing().judge(LONG_S) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (grow, "card grows by 1.50 MiB a minute"),
        (keep_a_slot, "1 slots in use"),
        (keep_a_request_queued, "1 requests queued"),
        (keep_a_descriptor, "card holds 12 file descriptors at rest, 9 before"),
        (answer_another_text, "another text than its reference"),
        (answer_nothing, "nothing was compared"),
        (lose_a_process, "a process died under load"),
    ],
)
def test_every_fault_fails_the_soak_and_is_named(
    spoil: Callable[[Observed], None], said: str
) -> None:
    found = found_nothing()
    spoil(found)
    (line,) = found.judge(LONG_S)
    assert said in line


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.BadParameter, match="file/x cannot be made: Not a directory"):
        results_folder(tmp_path / "file/x", "soak")
    assert results_folder(tmp_path / "new", "soak").is_dir()


def test_empty_responses_of_the_time_in_the_queue_are_no_text() -> None:
    request = {
        "response_timestamps": [10, 20, 30, 40],
        "response_outputs": [{"text_output": text} for text in ("", "", "a", "")],
    }
    assert _texts_ns(request) == [30, 40]


@pytest.mark.parametrize(
    ("said", "in_vain"),
    [("No valid requests recorded within time interval.", True), ("connection refused", False)],
)
@pytest.mark.parametrize("left", [(), ("001.csv", "001.json")], ids=["empty", "used"])
def test_a_level_at_which_no_request_ended_is_told_from_a_run_that_failed(
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


def test_hosts_that_the_environment_keeps_from_proxies_are_kept_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    here = _asked_directly()
    assert "127.0.0.1" in here.split(",")
    for name, host in (("no_proxy", "triton.internal"), ("no_grpc_proxy", "other.internal")):
        monkeypatch.setenv(name, host)
        assert _asked_directly() == f"{host},{here}", name
