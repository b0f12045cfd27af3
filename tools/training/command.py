"""Train drafts and heads for a target."""

from __future__ import annotations

import typer

from training.distil import distil
from training.heads.command import heads
from training.own_texts import texts
from training.parallel.command import parallel

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
for command in (texts, distil, parallel, heads):
    app.command()(command)
