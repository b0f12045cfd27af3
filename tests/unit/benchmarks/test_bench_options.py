"""The benchmark's commands, and what they refuse before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_pair import PAIR_VARIABLES
from typer.testing import CliRunner

from bench.command import app


def test_the_command_names_its_subcommands() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "suite" in shown
    assert "family" in shown
    assert "streams" in shown
    assert "--minutes" in CliRunner().invoke(app, ["suite", "--help"]).output


@pytest.mark.parametrize("command", ["suite", "family", "streams"])
@pytest.mark.parametrize("place", ["folder", "file/further.json", "a" * 300])
def test_figures_that_could_not_be_written_are_refused_before_anything_is_measured(
    tmp_path: Path, command: str, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ended = CliRunner().invoke(app, [command, "--json", str(tmp_path / place)])
    assert ended.exit_code == 2
    assert "cannot be written" in " ".join(ended.output.replace("│", " ").split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_asking_where_figures_may_go_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PAIR_VARIABLES.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "new" / "figures.json"
    ended = CliRunner().invoke(app, ["suite", "--json", str(file), "--prompts", "/nowhere"])
    assert ended.exit_code == 2
    assert "/nowhere" in ended.output
    assert not file.exists()
