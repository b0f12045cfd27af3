"""A settings file that cannot be read, or is none, is refused in one line that names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from settings_files import Write, refusal

from card.settings import SettingsError, load_settings

pytestmark = pytest.mark.usefixtures("no_overrides")


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    assert f"{tmp_path / 'absent.yaml'} does not exist" in refusal(tmp_path / "absent.yaml")


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    assert f"{tmp_path} is no regular file" in refusal(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"{file} cannot be read" in refusal(file)


@pytest.mark.parametrize(
    "text",
    [
        "limits: {", "a: 1\n---\nb: 2", "\tlimits: {}", "1" * 10_000, "a: 2001-99-99", "[" * 1_000,
        "engine: !!timestamp x", "engine: !!bool x", "engine: !!int ''", "engine: !!float ''",
    ],
    ids=lambda text: text[:22],
)  # fmt: skip
def test_a_file_that_is_not_yaml_is_refused(write: Write, text: str) -> None:
    file = write(text)
    assert f"{file} is not valid YAML" in refusal(file)


def test_a_key_that_stands_twice_is_refused(write: Write) -> None:
    """YAML takes the last one, and whoever wrote the first wonders."""
    file = write("cache: {slots: 4}\nlimits: {max_tokens: 8}\ncache:\n  slots: 5\n")
    assert f"{file}: 'cache' stands in lines 1 and 3; say it once" in refusal(file)
    assert "'slots' stands in lines 1 and 1" in refusal(write("cache: {slots: 4, slots: 5}"))
    assert "'slots' stands in lines 2 and 3" in refusal(write("cache:\n  slots: 4\n  slots: 4\n"))


@pytest.mark.parametrize(("text", "kind"), [("- limits", "list"), ("3", "int"), ("text", "str")])
def test_a_file_that_holds_no_mapping_is_refused(write: Write, text: str, kind: str) -> None:
    message = refusal(write(text))
    assert "must hold a mapping of sections (engine, target, draft," in message
    assert kind in message


def test_aliases_that_lead_back_or_multiply_hold_nobody_up(write: Write) -> None:
    assert "limits" in refusal(write("limits: &loop {max_tokens: *loop}"))
    doubling = "\n".join(f"  a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}" for n in range(1, 60))
    assert "'x' is no field" in refusal(write(f"x:\n  a0: &a0 {{}}\n{doubling}"))


def test_yaml_cannot_run_code(write: Write, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    file = write(f"cache: !!python/object/apply:os.mkdir ['{touched}']")
    assert "is not valid YAML" in refusal(file)
    assert not touched.exists()


def test_broken_yaml_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("cache: {slots: 4}\nspeculation: {width: 4\n")
    assert "is not valid YAML: line 3, column 1: " in refusal(file)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / ("a" * 300))


def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "settings.yaml"
    os.mkfifo(pipe)
    assert "is no regular file" in refusal(pipe)


def test_a_section_named_by_a_number_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"? 0x{'f' * 6000}\n: 1\n")
    with pytest.raises(SettingsError, match="a number of thousands of digits is no field"):
        load_settings(file)
