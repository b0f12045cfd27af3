"""What holds of the whole source: clocks, directions of imports, claims that name a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from card import serving
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


ROOT = Path(serving.__file__).parent
BELOW = {
    "requests": set(),
    "metrics": {"requests"},
    "supervision": {"requests"},
    "triton": {"metrics", "requests", "supervision"},
}


def imported(file: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_no_room_imports_from_one_above_it() -> None:
    for room, below in BELOW.items():
        for file in (ROOT / room).rglob("*.py"):
            modules = [name.split(".") for name in imported(file)]
            rooms = {
                parts[2] for parts in modules if parts[:2] == ["card", "serving"] and parts[2:]
            }
            assert rooms & BELOW.keys() <= below | {room}, file


def test_the_room_of_triton_alone_knows_its_python_interface() -> None:
    know = {
        file.parent.name
        for file in ROOT.rglob("*.py")
        if "triton_python_backend_utils" in imported(file)
    }
    assert know == {"triton"}


def test_every_test_that_is_named_exists() -> None:
    text = (REPOSITORY_ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    files = (REPOSITORY_ROOT / "tests").rglob("test_*.py")
    existing = {
        name
        for file in files
        for name in re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8"))
    }
    assert named
    assert named - existing == set()
