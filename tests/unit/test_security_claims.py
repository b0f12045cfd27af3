"""Every test that SECURITY.md names exists."""

from __future__ import annotations

import ast
import re

from card.settings import REPOSITORY_ROOT

TEXT = (REPOSITORY_ROOT / "SECURITY.md").read_text(encoding="utf-8")


def existing_tests() -> set[str]:
    files = (REPOSITORY_ROOT / "tests").rglob("test_*.py")
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 25
    assert named - existing_tests() == set()
