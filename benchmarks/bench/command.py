"""The command line: `suite`, `family`, `tables`, `sled`, `quality` and `streams`."""

from __future__ import annotations

import typer

from bench.family import family, tables
from bench.quality import quality
from bench.sled import sled
from bench.streams import streams
from bench.suite import suite

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Measure how fast this machine decodes.",
)
app.command()(suite)
app.command()(family)
app.command()(tables)
app.command()(sled)
app.command()(quality)
app.command()(streams)
