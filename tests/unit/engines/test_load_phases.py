"""Each phase of a load is told as it begins, and logged with its seconds."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from card.engines.phases import phase, watched_by
from card.serving.supervision.notices import Notices


def test_a_phase_is_told_while_it_lasts_and_logged_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []
    with watched_by(told.append), phase("compile", "models/target"):
        assert told == ["compile"]
        assert not caplog.messages
    assert told == ["compile", ""]
    (message,) = caplog.messages
    assert re.fullmatch(r"models/target: compile took \d+\.\d s", message)


def test_a_phase_that_fails_is_over_too() -> None:
    told: list[str] = []
    with pytest.raises(ValueError, match="damaged"), watched_by(told.append), phase("read", "x"):
        raise ValueError("damaged")
    assert told == ["read", ""]


def test_the_supervisor_reads_the_phase_and_how_long_it_has_lasted(tmp_path: Path) -> None:
    model, supervisor = (Notices(tmp_path).loading["target"] for _ in range(2))
    assert supervisor.phase is None
    model.post("check rows")
    assert supervisor.phase is not None
    phase, seconds = supervisor.phase
    assert phase == "check rows"
    assert seconds > 0
    model.post("")
    assert supervisor.phase is None
