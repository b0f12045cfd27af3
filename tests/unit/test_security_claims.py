"""Every test that SECURITY.md names exists."""

from __future__ import annotations

import re

from card.settings import REPOSITORY_ROOT


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
