"""The rooms of `card.serving` import in one direction, and one of them knows Triton."""

from __future__ import annotations

import ast
from pathlib import Path

from card import serving

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
