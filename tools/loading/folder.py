"""Where a run keeps what it measured."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import typer

from card.settings import REPOSITORY_ROOT


def results_folder(given: Path | None, kind: str) -> Path:
    """The folder `given`, else `build/KIND/TIME`; it exists. Raises `typer.BadParameter`."""
    stamp = datetime.now().strftime("%Y-%m-%dT%H%M%S")
    folder = given or REPOSITORY_ROOT / "build" / kind / stamp
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{folder} cannot be made: {error.strerror}"
        raise typer.BadParameter(reason, param_hint="'--output'") from error
    return folder
