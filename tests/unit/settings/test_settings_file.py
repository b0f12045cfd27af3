"""A settings file that cannot be read, or a path that leads nowhere, is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from settings_files import Write, refusal

from card.settings import load_settings
from card.settings.paths import PATHS
from card.settings.schema import whole

pytestmark = pytest.mark.usefixtures("no_overrides")


@pytest.fixture
def circle(tmp_path: Path) -> Path:
    """A link to a link back to it."""
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    return tmp_path / "there"


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, circle: Path) -> None:
    """A named pipe too, instead of being waited for."""
    pipe, binary = tmp_path / "pipe.yaml", tmp_path / "binary.yaml"
    os.mkfifo(pipe)
    binary.write_bytes(b"\xff\xfe\x00")
    for file, said in (
        (tmp_path / "absent.yaml", "does not exist"),
        (tmp_path, "is no regular file"),
        (pipe, "is no regular file"),
        (binary, "cannot be read"),
        (tmp_path / ("a" * 300), "cannot be read"),
        (circle, "cannot be read"),
    ):
        assert f"{file} {said}" in refusal(file)


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
    assert "is not valid YAML: line 3, column 1: " in refusal(
        write("cache: {slots: 4}\na: {b: 4\n")
    )


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


def test_a_section_named_by_a_number_of_thousands_of_digits_is_refused(write: Write) -> None:
    said = "a number of thousands of digits is no field"
    assert said in refusal(write(f"? 0x{'f' * 6000}\n: 1\n"))


NAMES = [".".join(place) for place in PATHS]


def setting(name: str, path: str | Path) -> str:
    section, field = name.split(".")
    return f"{section}: {{{field}: '{path}'}}"


def test_no_path_is_left_out() -> None:
    of_schema = {
        leaf.place
        for leaf in whole().leaves()
        if "path" in [part.get("format") for part in (leaf.schema, *leaf.schema.get("anyOf", ()))]
    }
    assert of_schema == set(PATHS)


LEADING_NOWHERE = {
    "there": "Too many levels of symbolic links",
    "file/further": "Not a directory",
    "a" * 256: "File name too long",
    "a/" * 2500: "File name too long",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("circle")
def test_a_path_that_leads_nowhere_is_refused_by_name(
    write: Write, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    for path, why in LEADING_NOWHERE.items():
        file = write(setting(name, path))
        message = refusal(file)
        assert message.startswith(f"settings file {file}: {name}: it leads nowhere: {why} (got '")
        assert len(path) < 80 or message.endswith("...)"), "a long one is cut"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_there_is_for_those_who_need_it(write: Write, name: str) -> None:
    assert load_settings(write(setting(name, "not/there")))


def test_what_is_kept_from_start_to_start_needs_a_directory(write: Write, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    message = refusal(write("serving: {calibration_cache: taken}"))
    assert "serving.calibration_cache: it must be a directory, or nothing yet (got" in message
