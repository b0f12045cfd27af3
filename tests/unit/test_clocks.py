"""A clock that jumps decides nothing: deadlines, heartbeats and rests use the monotonic clock."""

from __future__ import annotations

import ast
from pathlib import Path

from card.settings import REPOSITORY_ROOT

WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}


def wall_clock_calls(file: Path) -> set[str]:
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    return {call.replace("datetime.datetime", "datetime") for call in calls} & WALL_CLOCKS


def test_nothing_that_serves_asks_for_the_time_of_day() -> None:
    files = list((REPOSITORY_ROOT / "python_backend/card").rglob("*.py"))
    assert len(files) > 80
    assert [file for file in files if wall_clock_calls(file)] == []
