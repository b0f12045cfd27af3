"""Paths of the settings that lead nowhere are refused by name before anybody uses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from settings_files import Write, refusal

from card.settings import SettingsError, load_settings
from card.settings.paths import PATHS
from card.settings.schema import whole

pytestmark = pytest.mark.usefixtures("no_overrides")

NAMES = [".".join(place) for place in PATHS]


def setting(name: str, path: str | Path) -> str:
    section, field = name.split(".")
    return f"{section}: {{{field}: '{path}'}}"


@pytest.fixture
def circle(tmp_path: Path) -> Path:
    """A link to a link back to it."""
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    return tmp_path / "there"


def test_no_path_is_left_out() -> None:
    of_schema = {
        leaf.place
        for leaf in whole().leaves()
        if "path" in [part.get("format") for part in (leaf.schema, *leaf.schema.get("anyOf", ()))]
    }
    assert of_schema == set(PATHS)


@pytest.mark.parametrize("name", NAMES)
def test_links_in_a_circle_are_refused(write: Write, circle: Path, name: str) -> None:
    file = write(setting(name, circle))
    assert refusal(file) == (
        f"settings file {file}: {name}: it leads nowhere: Too many levels of symbolic links "
        f"(got '{circle}')"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", ["a" * 256, "a/" * 2500], ids=["name", "path"])
def test_names_that_no_file_has_are_refused_and_cut(write: Write, name: str, path: str) -> None:
    message = refusal(write(setting(name, path)))
    assert f"{name}: it leads nowhere: File name too long (got '" in message
    assert message.endswith("...)")


@pytest.mark.parametrize("name", NAMES)
def test_a_path_through_a_file_is_refused(write: Write, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    message = refusal(write(setting(name, "file/further")))
    assert f"{name}: it leads nowhere: Not a directory" in message


def test_every_wrong_path_is_named_where_it_was_said(
    write: Write, circle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARD_CACHE__DIRECTORY", str(circle))
    in_file, in_variable = refusal(write(setting("draft.path", circle))).split("; ")
    assert "draft.path: it leads nowhere" in in_file
    assert in_variable.startswith("environment variable CARD_CACHE__DIRECTORY: cache.directory: ")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_there_is_for_those_who_need_it(write: Write, name: str) -> None:
    assert load_settings(write(setting(name, "not/there")))


def test_what_is_kept_from_start_to_start_needs_a_directory(write: Write, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    message = refusal(write("serving: {findings: taken}"))
    assert "serving.findings: it must be a directory, or nothing yet (got" in message


def test_a_settings_file_behind_links_in_a_circle_is_no_traceback(circle: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: .*symbolic links"):
        load_settings(circle)


def test_links_are_followed(write: Write, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    os.symlink("models", tmp_path / "link")
    settings = load_settings(write("target: {path: link/mine}"))
    assert settings.target.path == tmp_path / "models/mine"
