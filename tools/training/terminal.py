"""What the user sees: progress bars, figures, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from training.progress import Show
from training.stages import Evaluation

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
        console.print("stopped; `all` goes on behind the stages that are done")
        raise typer.Exit(130) from None


def print_figures(figures: Evaluation, prompts: str) -> None:
    """Print losses, and one line of a table for each temperature."""
    for role, size, loss in (
        ("target", figures.target_parameters, figures.target_loss),
        ("draft", figures.draft_parameters, figures.draft_loss),
    ):
        told = "not measured (no --held-out)" if loss is None else f"{loss:.3f} nats per token"
        console.print(f"{role}: {size / 1e6:.1f}M parameters, validation loss {told}")
    table = Table(title=prompts)
    for heading in (
        "temperature",
        "tokens",
        "agreement",
        "in best 2, 4, 8",
        "ideal tokens/step, 4, 8, 16 rows",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for row in figures.agreement:
        table.add_row(
            f"{row.temperature:g}",
            str(row.tokens),
            f"{row.top_1:.3f}",
            "  ".join(f"{share:.3f}" for share in row.within.values()),
            "  ".join(f"{tokens:.2f}" for tokens in row.ideal.values()),
        )
    console.print(table)
