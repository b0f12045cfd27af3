"""Prints every field of the settings: its default, what it takes and what it is for.

python -m card.settings > card.yaml
python -m card.settings --check card.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from card.settings import SettingsError, load_settings
from card.settings.paths import missing_files
from card.settings.reference import reference


def main(
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead say whether FILE, under the environment variables that are set here, is "
            "well. The pair, ports and memory are looked at when the service starts.",
        ),
    ] = None,
) -> None:
    """Print a settings file with every field, its default, what it takes and what it is for."""
    if check is None:
        typer.echo(reference(), nl=False)
        return
    try:
        problem = missing_files(load_settings(check), check)
    except SettingsError as error:
        problem = str(error)
    if problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2)
    typer.echo(f"{check} is well")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m card.settings")
