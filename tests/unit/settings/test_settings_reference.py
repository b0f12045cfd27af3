"""`python -m card.settings`: prints a file with every field, and says whether one is well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel
from settings_files import Write, refusal
from typer.testing import CliRunner

from card.settings import Settings, load_settings
from card.settings.__main__ import main
from card.settings.reference import reference
from card.settings.schema import explained

pytestmark = pytest.mark.usefixtures("no_overrides")


def fields(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The place of every field that is no section, from the models themselves."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, (*prefix, name))
        else:
            yield (*prefix, name)


def printed_fields(content: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[Any]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from printed_fields(value, (*prefix, name))
        else:
            yield (*prefix, name)


def with_all_defaults(text: str) -> str:
    """With those that follow from other fields said too."""
    follows = ("prompt_tokens: ", "prompt_bytes: ", "default_max_tokens: ")
    lines = text.splitlines()
    return "\n".join(
        line.replace("# ", "", 1) if line.lstrip("# ").startswith(follows) else line
        for line in lines
    )


def folded(text: str) -> str:
    """Without the signs of a comment, on one line."""
    return " ".join(text.replace("#", " ").split())


def test_every_field_is_listed_in_its_section() -> None:
    printed = list(printed_fields(yaml.safe_load(with_all_defaults(reference()))))
    assert printed == list(fields(Settings))


def test_what_is_printed_is_a_settings_file_that_changes_nothing(write: Write) -> None:
    default = load_settings().model_dump()
    assert load_settings(write(reference())).model_dump() == default
    assert load_settings(write(with_all_defaults(reference()))).model_dump() == default


def test_every_field_is_told_what_it_takes_and_what_it_is_for() -> None:
    text = folded(reference())
    for leaf in explained().leaves():
        assert folded(f"{leaf.meaning} It must be {leaf.allowed}.") in text, leaf.place
    assert [leaf.place for leaf in explained().leaves() if not leaf.meaning] == []
    assert max(map(len, reference().splitlines())) <= 100


def checked(file: Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, ["--check", str(file)])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("text", [reference(), "cache: {slots: 0}", "cache: {slots: 4"])
def test_a_file_is_well_or_refused_in_the_words_of_a_start(write: Write, text: str) -> None:
    file = write(text)
    if text == reference():
        assert checked(file) == (0, f"{file} is well\n", "")
    else:
        assert checked(file) == (2, "", f"error: {refusal(file)}\n")


def test_the_environment_counts_as_it_does_at_a_start(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("cache: {slots: 4}")
    monkeypatch.setenv("CARD_CACHE__SLOTS", "0")
    code, said, error = checked(file)
    assert (code, said) == (2, "")
    assert "CARD_CACHE__SLOTS" in error


def test_what_only_some_settings_need_must_be_there(write: Write, tmp_path: Path) -> None:
    nowhere = f"{tmp_path}/none"
    drafter = "speculation: {drafter: hierarchy}"
    for text, field in (
        (f"{drafter}\ndraft_small: {{path: {nowhere}}}", "draft_small.path"),
        (f"speculation: {{ngram_table: {nowhere}}}", "speculation.ngram_table"),
    ):
        code, said, error = checked(write(text))
        assert (code, said) == (2, "")
        assert f"{field}: it does not exist; " in error
        assert nowhere in error
    (tmp_path / "none").mkdir()
    assert checked(write(f"{drafter}\ndraft_small: {{path: {nowhere}}}"))[0] == 0
    unread = write("draft_small: {path: nowhere}\nspeculation: {ngram_table: null}")
    assert checked(unread)[0] == 0, "no drafter reads it"
