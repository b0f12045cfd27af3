"""What perf_analyzer wrote down is read as a client would: the first text, not the first sign."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from loading import perf_analyzer
from loading.perf_analyzer import (
    NothingMeasuredError,
    PerfAnalyzerError,
    _asked_directly,
    _texts_ns,
    measure,
)


def test_empty_responses_of_the_time_in_the_queue_are_no_text() -> None:
    request = {
        "response_timestamps": [10, 20, 30, 40],
        "response_outputs": [{"text_output": text} for text in ("", "", "a", "")],
    }
    assert _texts_ns(request) == [30, 40]


def test_without_outputs_every_response_counts() -> None:
    assert _texts_ns({"response_timestamps": [10, 20]}) == [10, 20]
    outputs: list[dict[str, Any]] = [{}, {}]
    assert _texts_ns({"response_timestamps": [10, 20], "response_outputs": outputs}) == [10, 20]


@pytest.mark.parametrize(
    ("said", "in_vain"),
    [("No valid requests recorded within time interval.", True), ("connection refused", False)],
)
@pytest.mark.parametrize("left", [(), ("001.csv", "001.json")], ids=["empty", "used"])
def test_a_level_at_which_no_request_ended_is_told_from_a_run_that_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    in_vain: bool,
    left: tuple[str, ...],
) -> None:
    @contextmanager
    def started(options: list[str]) -> Iterator[Mock]:
        yield Mock(communicate=lambda: (said, None))

    for name in left:  # of a run before, in the same folder
        (tmp_path / name).write_text("figures")
    monkeypatch.setattr(perf_analyzer, "_started", started)
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
