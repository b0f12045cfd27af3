"""`python -m card.settings`: prints a file with every field, and says whether one is valid."""

from __future__ import annotations

import pytest
import typer
from settings_files import Write, refusal
from typer.testing import CliRunner

from card.settings import REPOSITORY_ROOT, load_settings
from card.settings.__main__ import main
from card.settings.reference import reference

pytestmark = pytest.mark.usefixtures("no_overrides")

PAGE = REPOSITORY_ROOT / "docs/settings.md"


def checked(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout, done.stderr


def test_page_has_the_reference_that_the_command_prints() -> None:
    """To bring it up to date, put `python -m card.settings` between the page's last fences."""
    code, printed, _ = checked()
    assert code == 0
    assert printed == PAGE.read_text(encoding="utf-8").split("```yaml\n")[-1].split("```")[0]


def test_reference_is_a_settings_file_that_changes_nothing(write: Write) -> None:
    assert load_settings(write(reference())).model_dump() == load_settings().model_dump()


@pytest.mark.parametrize("text", [reference(), "cache: {slots: 0}", "cache: {slots: 4"])
def test_check_accepts_and_refuses_what_a_start_does(write: Write, text: str) -> None:
    file = write(text)
    if text == reference():
        assert checked("--check", str(file))[::2] == (0, "")
    else:
        assert checked("--check", str(file)) == (2, "", f"error: {refusal(file)}\n")
