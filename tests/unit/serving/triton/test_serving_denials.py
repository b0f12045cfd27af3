"""Refused attach requests are told, and do not fill the log."""

from __future__ import annotations

import pytest

from card.serving.log import open_log
from card.serving.triton.denials import QUIET_S, Denials


def test_many_denials_are_one_line_now_and_one_later(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    denials = Denials(open_log("target", "text"), lambda: now_s)
    for _ in range(500):
        denials.count()
    (line,) = capsys.readouterr().err.splitlines()
    assert "level=warning component=target event=attach_refused requests=1" in line
    now_s += QUIET_S
    denials.count()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("requests=500")
