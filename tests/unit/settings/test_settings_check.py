"""`python -m card.settings --check FILE`: would the service take these settings?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from settings_files import Write, refusal

from card.settings import REPOSITORY_ROOT
from card.settings.reference import reference

pytestmark = pytest.mark.usefixtures("no_overrides")

DEPLOYED = sorted((REPOSITORY_ROOT / "deploy/kubernetes/overlays").glob("*/settings.yaml"))


def checked(file: Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    command = [sys.executable, "-m", "card.settings", "--check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("file", DEPLOYED, ids=lambda file: file.parent.name)
def test_the_settings_that_are_deployed_are_well(file: Path) -> None:
    assert checked(file) == (0, f"{file} is well\n", "")


def test_what_the_command_prints_without_the_option_is_well(write: Write) -> None:
    file = write(reference())
    assert checked(file) == (0, f"{file} is well\n", "")


@pytest.mark.parametrize(
    "text", ["cache: {slots: 0}", "cash: {slots: 4}", "cache: {slots: 4", "serving: {guard: 7}"]
)
def test_a_file_that_is_not_well_is_refused_in_the_words_of_a_start(
    write: Write, text: str
) -> None:
    file = write(text)
    assert checked(file) == (2, "", f"error: {refusal(file)}\n")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    code, said, error = checked(tmp_path / "absent.yaml")
    assert (code, said) == (2, "")
    assert error == f"error: settings file {tmp_path / 'absent.yaml'} does not exist\n"


def test_the_environment_counts_as_it_does_at_a_start(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("cache: {slots: 4}")
    monkeypatch.setenv("CARD_CACHE__SLOTS", "0")
    code, said, error = checked(file)
    assert (code, said) == (2, "")
    assert error.startswith("error: environment variable CARD_CACHE__SLOTS: cache.slots: ")
