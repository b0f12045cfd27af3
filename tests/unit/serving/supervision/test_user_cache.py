"""What models found out is kept where only this user may write."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from card.serving.supervision.user_cache import user_cache


def test_it_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = user_cache()
    assert found == tmp_path / "cache" / "card-triton"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_without_the_variable_it_lies_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "card-triton"


def test_one_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "card-triton").mkdir()
    (tmp_path / "card-triton").chmod(0o770)
    assert user_cache() is None


def test_where_none_can_be_made_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert user_cache() is None
