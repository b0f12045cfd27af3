"""How a contest ends: its tables are shown and stored, and a text that differs is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from bench.contest import Completion
from bench.report import Report, Written, print_report, store
from bench.terminal import DIFFER, RESULTS, name_differences, say_reservation


def conclude(
    console: Console,
    report: Report,
    command: str,
    json_file: Path | None,
    completions: Sequence[Completion],
) -> None:
    """Show and store what `command` found; by default among the results, by date and command.

    Raises `typer.Exit` where a text of ours is not the target's own.
    """
    print_report(console, report)
    say_reservation(console, report.conditions)
    keep(console, report, report.conditions.date, command, json_file)
    if not all(row.texts_equal in (True, None) for row in (*report.rows, *report.tried)):
        name_differences(completions)
        raise typer.Exit(DIFFER)


def keep(
    console: Console, report: Written, date: str, command: str, json_file: Path | None
) -> None:
    """Store what `command` found; by default among the results, by date and command."""
    file = json_file or RESULTS / f"{date.replace(':', '').split('+')[0]}-{command}.json"
    for path in store(report, file):
        console.print(str(path), highlight=False, soft_wrap=True)
