"""How a command refuses: one line on standard error, and exit code 2."""

from __future__ import annotations

from typing import NoReturn

import typer

REFUSED = 2
"""Exit code when an argument, a setting, a file or the machine lacks something or is wrong."""


def refuse(reason: object) -> NoReturn:
    """End the command. Raises `typer.Exit`."""
    typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(REFUSED) from None
