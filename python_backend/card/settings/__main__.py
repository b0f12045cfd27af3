"""Prints every field of the settings: its default, what it takes and what it is for.

python -m card.settings > card.yaml
python -m card.settings --check card.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from card.settings import SettingsError, load_settings
from card.settings.reference import reference


def main(
    check: Annotated[Path | None, typer.Option(help="Check this settings file instead.")] = None,
) -> None:
    """Print a settings file with every field, its default, what it takes and what it is for."""
    if check is None:
        typer.echo(reference(), nl=False)
        return
    try:
        settings = load_settings(check)
        small = settings.draft_small.path if settings.has_small_draft else None
        for field, path in (
            ("draft_small.path", small),
            ("speculation.ngram_table", settings.speculation.ngram_table),
        ):
            if isinstance(path, Path) and not path.exists():
                raise SettingsError(f"settings file {check}: {field}: {path} does not exist")
    except SettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"{check} is valid; the models, ports and memory are checked at a start")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m card.settings")
