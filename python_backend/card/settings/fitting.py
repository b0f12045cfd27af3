"""The default of `limits.context_tokens`: no more than both models were built for."""

from __future__ import annotations

from pathlib import Path

from card.settings.limits import LimitSettings
from card.settings.whole import Settings
from model_files import ModelFilesError, model_files_of, most_positions


def with_fitting_limits(settings: Settings) -> Settings:
    """With limits that both models bear where the settings name no context, paths anchored.

    Raises `ValueError` where what the settings do say leaves no room for them.
    """
    limits = settings.limits
    if "context_tokens" in limits.model_fields_set:
        return settings
    models = {getattr(settings, role).path: role for role in settings.roles}
    found = {path: have for path in models if (have := _positions_of(path)) is not None}
    if not found or min(found.values()) >= limits.context_tokens:
        return settings
    path = min(found, key=found.__getitem__)
    said = limits.model_dump(include=limits.model_fields_set)
    fitting = LimitSettings.model_validate(said | {"context_tokens": found[path]})
    if fitting.prompt_tokens >= fitting.context_tokens:
        raise ValueError(
            f"limits.prompt_tokens must be below the {found[path]} positions that {models[path]} "
            f"{path} was built for (got {fitting.prompt_tokens})"
        )
    return settings.model_copy(update={"limits": fitting})


def _positions_of(path: Path) -> int | None:
    try:
        return most_positions(model_files_of(path).config())
    except ModelFilesError:  # whoever loads the model says what is wrong
        return None
