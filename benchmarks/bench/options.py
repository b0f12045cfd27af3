"""Options that several commands take, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TEMPERATURES = (0.0, 0.8)

PromptsFile = Annotated[
    Path, typer.Option(help="JSONL: id, category, and prompt or messages in each line.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Use the first prompts only.", show_default="all")
]
MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens written for a prompt.")]
Minutes = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="No prompt is begun later, counted from the first one. Settings are chosen in half "
        "as many.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="Another settings file (YAML).", show_default="built in"),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(
        help="Sampling temperature. May be repeated.",
        show_default=", ".join(f"{t:g}" for t in TEMPERATURES),
        min=0,
    ),
]
