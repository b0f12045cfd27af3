"""Progress bars, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers.utils.logging import disable_progress_bar

from training.progress import Show

console = Console()
disable_progress_bar()  # the bars here are enough


@contextmanager
def bar(stage: str) -> Iterator[Show]:
    """A progress bar, and the function that moves it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[remark]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(stage, total=None, remark="")

        def show(share: float | None, remark: str) -> None:
            progress.update(
                task, total=None if share is None else 1.0, completed=share or 0.0, remark=remark
            )

        yield show


@contextmanager
def told() -> Iterator[None]:
    """Turn an expected error into one line, and Ctrl-C into a word."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print("stopped")
        raise typer.Exit(130) from None
