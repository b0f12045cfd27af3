"""A settings file that cannot be read, or a path that leads nowhere, is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from settings_files import Write, refusal

from card.settings.reference import fields

pytestmark = pytest.mark.usefixtures("no_overrides")


@pytest.fixture
def circle(tmp_path: Path) -> Path:
    """A link to a link back to it."""
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    return tmp_path / "there"


def test_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, circle: Path) -> None:
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
        "cache: !!python/object/apply:os.mkdir [touched]",
    ],
    ids=lambda text: text[:22],
)  # fmt: skip
def test_file_that_is_not_plain_yaml_is_refused(write: Write, text: str) -> None:
    file = write(text)
    assert f"{file} is not valid YAML" in refusal(file)


def test_key_that_stands_twice_is_refused_with_its_line(write: Write) -> None:
    message = refusal(write("cache: {slots: 4}\nlimits: {max_tokens: 8}\ncache:\n  slots: 5\n"))
    assert "'cache' stands twice" in message
    assert "line 3" in message
    assert "'slots' stands twice" in refusal(write("cache: {slots: 4, slots: 5}"))


@pytest.mark.parametrize("text", ["- limits", "3", "text", "1: 2", f"? 0x{'f' * 6000}\n: 1\n"])
def test_file_without_a_mapping_of_names_is_refused(write: Write, text: str) -> None:
    assert "must hold a mapping of sections (engine, target, draft," in refusal(write(text))


def test_aliases_that_loop_or_multiply_are_refused_at_once(write: Write) -> None:
    assert "limits" in refusal(write("limits: &loop {max_tokens: *loop}"))
    doubling = "\n".join(f"  a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}" for n in range(1, 60))
    assert "x: no such field" in refusal(write(f"x:\n  a0: &a0 {{}}\n{doubling}"))


PATHS = [
    ".".join(place)
    for place, schema in fields().items()
    if "path" in [part.get("format") for part in (schema, *schema.get("anyOf", ()))]
]
LEADING_NOWHERE = ("there", "file/further", "a" * 256, "a/" * 2500, "a\\0b")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.usefixtures("circle")
def test_path_that_nothing_can_be_at_is_refused_by_name(
    write: Write, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    section, field = name.split(".")
    for path in LEADING_NOWHERE[2:]:
        file = write(f'{section}: {{{field}: "{path}"}}')
        assert refusal(file).startswith(f"settings file {file}: {name}: ")


def test_calibration_cache_that_is_a_file_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    message = refusal(write("serving: {calibration_cache: taken}"))
    assert "serving.calibration_cache: it must be a directory, or not exist yet (got" in message
