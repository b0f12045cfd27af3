"""`python -m card.settings --check FILE`: would the service take these settings?"""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from settings_files import Write, refusal
from typer.testing import CliRunner

from card.settings.__main__ import main
from card.settings.reference import reference

pytestmark = pytest.mark.usefixtures("no_overrides")


def checked(file: Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, ["--check", str(file)])
    return done.exit_code, done.stdout, done.stderr


def test_what_the_command_prints_without_the_option_is_well(write: Write) -> None:
    file = write(reference())
    assert checked(file) == (0, f"{file} is well\n", "")


@pytest.mark.parametrize("text", ["cache: {slots: 0}", "cache: {slots: 4"])
def test_a_file_that_is_not_well_is_refused_in_the_words_of_a_start(
    write: Write, text: str
) -> None:
    file = write(text)
    assert checked(file) == (2, "", f"error: {refusal(file)}\n")


def test_the_environment_counts_as_it_does_at_a_start(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("cache: {slots: 4}")
    monkeypatch.setenv("CARD_CACHE__SLOTS", "0")
    code, said, error = checked(file)
    assert (code, said) == (2, "")
    assert "CARD_CACHE__SLOTS" in error
