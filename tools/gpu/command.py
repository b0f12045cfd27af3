"""The command line: the phases in their order, and the verdict."""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from card.engines import EngineError
from card.engines.torch.captured.device import Devices, choose_device
from card.settings import REPOSITORY_ROOT
from gpu.apart import run_apart
from gpu.models import FULL, TINY, bundled_pair
from gpu.phases import PHASES, Job
from gpu.report import Found, PhaseRecord, Report, environment_of
from gpu.timing import slowness
from refusal import refuse

FAILED = 1
LIMIT_S = 240.0
"""Most seconds of a phase on a GPU. On a processor the limit follows from its speed."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def check(
    device: Annotated[str, typer.Option(help="cuda, cuda:N, or cpu to try the script.")] = "cuda",
    draft_device: Annotated[
        str | None, typer.Option(help="Another device for the draft; default: the same.")
    ] = None,
    only: Annotated[str, typer.Option(help="Phases, in the order in which they run.")] = ",".join(
        PHASES
    ),
    limit_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="A phase is ended after so many seconds.",
            show_default=f"{LIMIT_S:g}, longer on a slow processor",
        ),
    ] = None,
    scratch: Annotated[Path, typer.Option(help="Folder for a random pair (8b: 19 GB).")] = Path(
        "/tmp"
    ),
    results: Annotated[
        Path | None, typer.Option(help="Folder for the JSON; default: benchmarks/results on a GPU.")
    ] = None,
) -> None:
    """Check the torch engine on a GPU against a processor, and time it; the last line is a verdict.

    Exit code 0: every phase finished and every check held, 1: not so, 2: nothing was begun.
    """
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in PHASES]:
        refuse(f"--only: no phase is named {unknown[0]!r}; allowed: {', '.join(PHASES)}")
    try:
        seen = Devices.seen()
        found = choose_device(device, seen)
        choose_device(draft_device or device, seen)
    except (EngineError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        refuse(f"{reason}; `--device cpu` tries the script without a GPU")
    if results is None and found.type == "cuda":
        results = REPOSITORY_ROOT / "benchmarks/results"
    report = Report(environment_of(found), phases=[PhaseRecord(name) for name in names])
    with ExitStack() as exits:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
        exits.callback(signal.signal, signal.SIGTERM, before)
        try:
            kept = tempfile.TemporaryDirectory(prefix="card-gpu-", dir=scratch)
            folder = Path(exits.enter_context(kept))
        except OSError as error:
            refuse(f"--scratch: {error}")
        try:
            if results is not None:
                results.mkdir(parents=True, exist_ok=True)
                report.file = results / f"{datetime.now().astimezone():%Y-%m-%dT%H%M%S}-gpu.json"
            report.write()
        except OSError as error:
            refuse(f"--results: {error}")
        extent = TINY if found.type == "cpu" else FULL
        job = Job(bundled_pair(), str(found), draft_device or device, extent, folder)
        _run(report, job, limit_s or LIMIT_S * slowness(found))
    raise typer.Exit(0 if report.passed else FAILED)


def _run(report: Report, job: Job, limit_s: float) -> None:
    """Run phase after phase. One that fails, or is over its time, does not keep the next one
    back."""
    started = time.monotonic()

    def keep() -> None:
        """A disk that is full loses no line, and the file keeps what was written before."""
        report.seconds = time.monotonic() - started
        try:
            report.write()
        except OSError as error:
            typer.echo(f"not written: {error}")

    def on_found(found: Found) -> None:
        for line in report.add(found):
            typer.echo(line)
        keep()

    typer.echo(", ".join(f"{name} {value}" for name, value in report.environment.items()))
    try:
        for record in report.phases:
            record.limit_s, record.state = limit_s, "running"
            typer.echo(f"{record.name}: begins, for at most {limit_s:.0f} s")
            run_apart(
                PHASES[record.name], job, record, on_found, job.scratch / f"{record.name}.stderr"
            )
            why = f" ({record.detail})" if record.detail else ""
            typer.echo(f"{record.name}: {record.state} after {record.seconds:.0f} s{why}")
            keep()
    except KeyboardInterrupt:
        typer.echo("ended from outside")
    keep()
    if report.file is not None:
        typer.echo(f"results: {report.file}")
    typer.echo(report.verdict())
