"""Entry point of `python -m planning`."""

from planning.command import app

app(prog_name="scripts/plan")
