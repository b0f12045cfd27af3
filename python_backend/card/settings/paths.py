"""Paths of the settings: taken from the folder of their file, and refused if they lead nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from card.settings.refusals import got, said_in
from card.settings.whole import Settings
from model_files import model_at

PATHS = (
    ("target", "path"),
    ("draft", "path"),
    ("draft_small", "path"),
    ("speculation", "ngram_table"),
    ("cache", "directory"),
    ("serving", "calibration_cache"),
    ("serving", "tritonserver"),
)
"""Every field that is a path."""
_NGRAM_TABLE = "ngrams.npz"
_MODELS = ("target.path", "draft.path", "draft_small.path")
"""A folder that holds a GGUF file alone stands for that file."""
_DIRECTORIES_TO_BE = (("serving", "calibration_cache"),)
"""Those that may lead to a directory, or to nothing yet."""


def anchored(settings: Settings, base: Path) -> Settings:
    """With every path taken from `base`, unless it is absolute, and with the table of n-grams that
    lies beside the target where none is named."""

    def found(name: str, path: Path) -> Path:
        real = _real(base / path)
        return model_at(real) if name in _MODELS else real

    return _with_own_table(_with_paths(settings, found))


def own_table(target: Path) -> Path:
    """Where the table of n-grams of this model lies, if it has one: in its folder."""
    return (target if os.path.isdir(target) else target.parent) / _NGRAM_TABLE


def _with_own_table(settings: Settings) -> Settings:
    if settings.speculation.ngram_table != "auto":
        return settings
    table = own_table(settings.target.path)
    changed = {"ngram_table": table if os.path.isfile(table) else None}
    speculation = settings.speculation.model_copy(update=changed)
    return settings.model_copy(update={"speculation": speculation})


def in_ascii(settings: Settings, links: Path) -> Settings:
    """With a link in the folder `links` in place of every path that has other letters.

    The Python inside Triton's stubs takes names of files for ASCII, whatever the environment says,
    and cannot open what is called otherwise.
    """

    def linked(name: str, path: Path) -> Path:
        if str(path).isascii():
            return path
        link = links / name
        link.symlink_to(path)
        return link

    return _with_paths(settings, linked)


def wrong_paths(settings: Settings, file: Path | None) -> str:
    """Which of the paths, anchored ones, cannot be used; empty if all can.

    Only what no use of a path could do with is wrong here: what must be there, and of which kind,
    says whoever needs it.
    """
    problems = []
    for place in PATHS:
        path = getattr(getattr(settings, place[0]), place[1])
        if isinstance(path, Path) and (
            problem := _problem(path, to_be=place in _DIRECTORIES_TO_BE)
        ):
            problems.append(f"{said_in(place, file)}: {'.'.join(place)}: {problem}{got(str(path))}")
    return "; ".join(problems)


def missing_files(settings: Settings, file: Path | None) -> str:
    """Which files that not every pair needs, and these settings want, are not there; empty if all
    are. A start says the same, and more, of every model."""
    wanted: list[tuple[str, str, object, str]] = []
    if settings.has_small_draft:
        hint = f"speculation.drafter {settings.drafter} needs it; scripts/cut_draft.py makes one"
        wanted.append(("draft_small", "path", settings.draft_small.path, hint))
    hint = "scripts/ngrams makes one, null is none"
    wanted.append(("speculation", "ngram_table", settings.speculation.ngram_table, hint))
    problems = [
        f"{said_in((section, field), file)}: {section}.{field}: it does not exist; {hint}"
        f"{got(str(path))}"
        for section, field, path, hint in wanted
        if isinstance(path, Path) and not path.exists()
    ]
    return "; ".join(problems)


def _with_paths(settings: Settings, change: Callable[[str, Path], Path]) -> Settings:
    """With every path that is given replaced by what `change` makes of its name and it."""
    sections = {name: getattr(settings, name) for name in Settings.model_fields}
    for name, field in PATHS:
        if isinstance(path := getattr(sections[name], field), Path):
            changed = {field: change(f"{name}.{field}", path)}
            sections[name] = sections[name].model_copy(update=changed)
    return Settings.model_construct(**sections)


def _real(path: Path) -> Path:
    """Where links lead, unless this process can find that and not spell it (see `in_ascii`)."""
    real = os.path.realpath(path)  # `Path.resolve` raises where links lead in circles
    is_text = real == real.encode(errors="replace").decode()
    return Path(real) if is_text else path


def _problem(path: Path, *, to_be: bool) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it leads nowhere: {error.strerror}"
    if to_be and not path.is_dir():
        return "it must be a directory, or nothing yet"
    return ""
