#!/usr/bin/env python3
"""Cut a smaller draft out of a draft: some of its layers, with the same embedding and vocabulary.

Nothing is trained, so the smaller one agrees with the draft less often than one that was. It is for
`speculation.drafter: hierarchy`, where it drafts for the draft it was cut from; whether that pays
says `./scripts/plan hierarchy`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "scripts")]

from training.cutting import cut  # noqa: E402


def main(
    draft: Annotated[Path, typer.Argument(help="A Hugging Face directory with one weights file.")],
    smaller: Annotated[Path, typer.Argument(help="The folder that the smaller draft goes into.")],
    layer: Annotated[
        list[int] | None,
        typer.Option(help="Number of a layer to keep, from 0. May be repeated.", show_default="0"),
    ] = None,
) -> None:
    """Write a draft of some layers of another one."""
    layers = list(dict.fromkeys(layer or [0]))
    try:
        cut(draft, smaller, layers)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    print(f"{smaller}: layer {', '.join(map(str, layers))} of {draft}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(main)
    app()
