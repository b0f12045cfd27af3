"""One event, one line, for people or for machines."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import pytest

from card.serving.log import RequestLog
from card.settings import REPOSITORY_ROOT, LogFormat, ObservabilitySettings

Said = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What has been written to standard error since the last call."""
    return lambda: capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_request_id_is_short_and_no_command_to_a_terminal(said: Said, form: LogFormat) -> None:
    log = RequestLog("card", ObservabilitySettings(log_format=form, log_requests=True))
    log.answered("\x1b[2J\x9b1m\u202e" + "x" * 1_000_000, None)
    (line,) = said().splitlines()
    assert line.isprintable()
    assert "\\u001b[2J" in line
    assert "1000008 characters" in line
    assert len(line) < 500


def events_logged() -> set[str]:
    """First arguments of all calls that log an event of the service."""
    files = (REPOSITORY_ROOT / "python_backend/card/serving").rglob("*.py")
    calls = (
        node
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and node.args
    )
    names = ((getattr(call.func, "attr", getattr(call.func, "id", "")), call) for call in calls)
    return {
        call.args[0].value
        for name, call in names
        if name in ("note", "warn")
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def test_every_event_stands_in_the_runbook() -> None:
    events = events_logged()
    assert len(events) > 15
    runbook = (REPOSITORY_ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = runbook.split("| event | of | says |")[1].split("\n\n")[0]
    assert events - set(re.findall(r"`(\w+)`", table)) == set()
