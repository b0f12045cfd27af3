"""Prints every field of the settings: its default, what it takes and what it is for.

python -m card.settings > card.yaml
"""

from __future__ import annotations

import typer

from card.settings.reference import reference


def main() -> None:
    """Print a settings file with every field, its default, what it takes and what it is for."""
    typer.echo(reference(), nl=False)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m card.settings")
