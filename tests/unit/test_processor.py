"""How many cores a process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from card.cores import usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("250000 100000", 3),
        ("10000 100000", 1),
        ("6400000 100000", 16),
        ("what is this", 16),
        ("100000 0", 16),
        (None, 16),
    ],
)
def test_a_containers_quota_counts_where_it_is_less_than_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota + "\n")
    assert usable_cores(file) == cores
