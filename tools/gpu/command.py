"""The command line: the phases in their order, and the verdict."""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from card.engines import EngineError
from card.engines.torch.captured.device import Devices, choose_device
from card.settings import REPOSITORY_ROOT
from gpu.apart import run_apart
from gpu.models import FULL, TINY, bundled_pair
from gpu.phases import PHASES, USUAL, Job
from gpu.report import Environment, Found, PhaseRecord, Report, named_by_time
from gpu.timing import slowness

FAILED, REFUSED = 1, 2
LIMIT_S, TOTAL_S = 240.0, 300.0
"""Of a phase and of the run, on a GPU. On a processor both follow from what it can do."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def check(
    device: Annotated[str, typer.Option(help="cuda, cuda:N, or cpu to try the script.")] = "cuda",
    draft_device: Annotated[
        str | None, typer.Option(help="Another device for the draft; default: the same.")
    ] = None,
    only: Annotated[
        str,
        typer.Option(help=f"Phases in the order to run them, of: {', '.join(PHASES)}."),
    ] = ",".join(USUAL),
    limit_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="A phase is ended after so many seconds.",
            show_default=f"{LIMIT_S:g}, longer on a slow processor",
        ),
    ] = None,
    total_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="The run ends after about so many seconds.",
            show_default=f"{TOTAL_S:g}, longer on a slow processor",
        ),
    ] = None,
    scratch: Annotated[
        Path, typer.Option(help="Folder for random pairs, at most two at a time (8b: 19 GB each).")
    ] = Path("/tmp"),
    results: Annotated[
        Path | None, typer.Option(help="Folder for the JSON; default: benchmarks/results on a GPU.")
    ] = None,
) -> None:
    """Check the torch engine on a GPU against a processor, and time it; the last line is a verdict.

    Exit code 0: every phase finished and every check held, 1: not so, 2: nothing was begun.
    """
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in PHASES]:
        _refuse(f"--only: no phase is named {unknown[0]!r}; allowed: {', '.join(PHASES)}")
    try:
        seen = Devices.seen()
        found = choose_device(device, seen)
        choose_device(draft_device or device, seen)
    except (EngineError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        _refuse(f"{reason}; `--device cpu` tries the script without a GPU")
    if results is None and found.type == "cuda":
        results = REPOSITORY_ROOT / "benchmarks/results"
    report = Report(Environment.of(found), phases=[PhaseRecord(name) for name in names])
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    with ExitStack() as exits:
        exits.callback(signal.signal, signal.SIGTERM, before)
        try:
            kept = tempfile.TemporaryDirectory(prefix="card-gpu-", dir=scratch)
            folder = Path(exits.enter_context(kept))
        except OSError as error:
            _refuse(f"--scratch: {error}")
        run = _Run(report, str(found), draft_device or device, folder)
        try:
            report.file = None if results is None else named_by_time(results)
            report.write()
        except OSError as error:
            _refuse(f"--results: {error}")
        times = slowness(found)
        run.phases(limit_s or LIMIT_S * times, total_s or TOTAL_S * times)
    raise typer.Exit(0 if report.passed else FAILED)


def _refuse(why: str) -> NoReturn:
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"gpu_check: {why}")
    raise typer.Exit(REFUSED)


class _Run:
    """One run: runs phase after phase and saves each finding at once."""

    def __init__(self, report: Report, device: str, draft_device: str, scratch: Path) -> None:
        self._report, self._devices, self._scratch = report, (device, draft_device), scratch
        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._started = time.monotonic()

    def phases(self, limit_s: float, total_s: float) -> None:
        """Run them all, while there is time. One that fails, or is over its time, does not keep the
        next one back."""
        self._console.print(str(self._report.environment))
        kept = self._scratch / "kept"
        kept.mkdir()
        try:
            for record in self._report.phases:
                left_s = total_s - (time.monotonic() - self._started)
                record.limit_s = max(0.0, min(limit_s, left_s))
                self._phase(record, kept)
        except KeyboardInterrupt:
            self._console.print("ended from outside")
        if self._write() and self._report.file is not None:
            self._console.print(f"written: {self._report.file}")
        self._console.print(self._report.verdict())

    def _phase(self, record: PhaseRecord, kept: Path) -> None:
        name = record.name
        if not record.limit_s:
            record.detail = "the run's time is over"
            self._console.print(f"{name}: {record.state} ({record.detail}); --total-s gives more")
            return
        record.state = "running"
        self._write()
        self._console.print(f"{name}: begins, for at most {record.limit_s:.0f} s")
        with tempfile.TemporaryDirectory(prefix="phase-", dir=self._scratch) as scratch:
            extent = TINY if self._devices[0] == "cpu" else FULL
            job = Job(bundled_pair(), *self._devices, extent, Path(scratch), kept)
            try:
                run_apart(PHASES[name], job, record, self._found, Path(scratch, "stderr"))
            finally:
                self._write()
        why = f" ({record.detail})" if record.detail else ""
        self._console.print(f"{name}: {record.state} after {record.seconds:.0f} s{why}")

    def _found(self, found: Found) -> None:
        for line in self._report.add(found):
            self._console.print(line)
        self._write()

    def _write(self) -> bool:
        """Whether all that was found is written down. A disk that is full loses no line, and the
        file keeps what was written before."""
        self._report.seconds = time.monotonic() - self._started
        try:
            self._report.write()
        except OSError as error:
            self._console.print(f"not written: {error}")
            return False
        return True
