"""Settings that follow from where the settings file and the models are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from card.settings.limits import LimitSettings
from card.settings.models import GUESTS
from card.settings.section import Section
from card.settings.whole import Settings
from model_files import ModelFilesError, model_at, model_files_of, most_positions
from model_files.gguf.part_names import ending_of, parts_of
from model_files.opening import real_path


def anchored(settings: Settings, base: Path) -> Settings:
    """With relative paths taken from `base`, and the target's own n-gram table for `auto`.

    Raises `ValueError` on a path that nothing can be read from or written to. A model that does
    not exist is refused where it is loaded.
    """

    def found(name: str, path: Path) -> Path:
        try:
            real = real_path(base / path)
            if str(real) != str(real).encode(errors="replace").decode():  # then see `in_ascii`
                real = base / path
            real = model_at(real) if name.endswith(".path") else real
            if real.exists() and name == "serving.calibration_cache" and not real.is_dir():
                raise ValueError("it must be a directory, or not exist yet")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"{name}: {reason} (got {str(path)[:80]!r})") from None
        return real

    settings = _with_paths(settings, found)
    if settings.speculation.ngram_table != "auto":
        return settings
    table = own_table(settings.target.path)
    changed = {"ngram_table": table if os.path.isfile(table) else None}
    speculation = settings.speculation.model_copy(update=changed)
    return settings.model_copy(update={"speculation": speculation})


def own_table(target: Path) -> Path:
    """Where the n-gram table of this model is, if it has one: in the model's folder."""
    return (target if os.path.isdir(target) else target.parent) / "ngrams.npz"


def fitted(settings: Settings) -> Settings:
    """With limits that both models have positions for, where the settings name no context.

    Raises `ValueError` where a prompt limit leaves no room for that.
    """
    limits, most = settings.limits, settings.limits.context_tokens
    for role in () if "context_tokens" in limits.model_fields_set else settings.roles:
        with contextlib.suppress(ModelFilesError):  # reported where the model is loaded
            model = getattr(settings, role)
            # The kernels for CUDA do not slide, and other projects' engines may not either.
            slides = model.device == "cpu" and settings.engine_of(model) not in GUESTS
            config = model_files_of(model.path).config()
            most = min(most, most_positions(config, slides=slides) or most)
    if most == limits.context_tokens:
        return settings
    said = limits.model_dump(include=limits.model_fields_set) | {"context_tokens": most}
    fitting = LimitSettings.model_validate(said)
    if fitting.prompt_tokens >= most:
        raise ValueError(
            f"limits.prompt_tokens must be below the {most} positions of the models "
            f"(got {fitting.prompt_tokens})"
        )
    return settings.model_copy(update={"limits": fitting})


def in_ascii(settings: Settings, links: Path) -> Settings:
    """With a link in the folder `links` in place of every path that is not ASCII.

    The Python inside Triton's stubs takes file names as ASCII whatever the environment says.
    """

    def linked(name: str, path: Path) -> Path:
        if str(path).isascii():
            return path
        parts = parts_of(path)
        made = [links / f"{name}{ending_of(part)}" for part in parts]
        for link, part in zip(made, parts, strict=True):
            link.symlink_to(part)
        return made[0]

    return _with_paths(settings, linked)


def _with_paths(settings: Settings, change: Callable[[str, Path], Path]) -> Settings:
    """With every path replaced by what `change` makes of its field's name and it."""
    sections = dict(settings)
    for name, section in settings:
        if isinstance(section, Section):
            paths = {field: path for field, path in section if isinstance(path, Path)}
            changed = {field: change(f"{name}.{field}", path) for field, path in paths.items()}
            sections[name] = section.model_copy(update=changed)
    return Settings.model_construct(**sections)
