"""The command line: what is checked in which order, and the verdict."""

from __future__ import annotations

import gc
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console

from card.engines import EngineError
from card.engines.torch.captured.device import Devices, choose_device
from card.settings import REPOSITORY_ROOT
from gpu.arithmetic import check_logits, check_rows
from gpu.environment import Environment
from gpu.losslessness import check_texts, settings_of
from gpu.models import BUNDLED, FULL, TINY, Extent, Pair, load_draft, load_target
from gpu.pairs import AGREEMENTS, aligned_pair
from gpu.report import Check, Report, speed_lines, step_lines
from gpu.steps import step_costs
from gpu.systems import Speed, compare, systems_of

FAILED, REFUSED = 1, 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def check(
    device: Annotated[str, typer.Option(help="cuda, cuda:N, or cpu to try the script.")] = "cuda",
    draft_device: Annotated[
        str | None, typer.Option(help="Another device for the draft; default: the same.")
    ] = None,
    shape: Annotated[
        Literal["tiny", "1b-8b", "3b-32b"] | None,
        typer.Option(help="Also time random pairs of this shape at agreement 0.8, 0.6 and 0.9."),
    ] = None,
    budget_s: Annotated[
        float, typer.Option(min=1, help="No further table is begun after so many seconds.")
    ] = 330.0,
    scratch: Annotated[
        Path, typer.Option(help="Folder for random pairs, one at a time (1b-8b: 19 GB).")
    ] = Path("/tmp"),
    results: Annotated[
        Path | None, typer.Option(help="Folder for the JSON; default: benchmarks/results on a GPU.")
    ] = None,
) -> None:
    """Check the torch engine on a GPU against a processor, and time it; the last line is a verdict.

    Exit code 0: PASS, 1: FAIL, 2: the device is not there.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    started = time.monotonic()
    try:
        seen = Devices.seen()
        found = choose_device(device, seen)
        choose_device(draft_device or device, seen)
    except (EngineError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(
            f"gpu_check: {reason}; `--device cpu` tries the script without a GPU"
        )
        raise typer.Exit(REFUSED) from None
    report = Report(Environment.of(found), budget_s)
    console.print(str(report.environment))
    run = _Run(report, console, found, draft_device or device, started)
    run.everything(shape, scratch)
    report.seconds = time.monotonic() - started
    if results is None and found.type == "cuda":
        results = REPOSITORY_ROOT / "benchmarks/results"
    if results is not None:
        console.print(f"written: {report.write(results)}")
    console.print(report.verdict())
    raise typer.Exit(0 if report.passed else FAILED)


class _Run:
    """One run: checks first, for they are the verdict, then tables while there is time."""

    def __init__(
        self,
        report: Report,
        console: Console,
        device: torch.device,
        draft_device: str,
        started: float,
    ) -> None:
        self._report = report
        self._console = console
        self._device = device
        self._draft_device = draft_device
        self._started = started
        self._extent: Extent = TINY if device.type == "cpu" else FULL

    def everything(self, shape: str | None, scratch: Path) -> None:
        try:
            self._check_bundled()
            self._compare(BUNDLED)
            if shape is not None:
                for agreement in AGREEMENTS:
                    self._compare_aligned(shape, agreement, scratch)
        except EngineError as error:
            self._found(Check("loading", False, str(error)))

    def _check_bundled(self) -> None:
        for found in check_logits(BUNDLED, str(self._device), self._extent):
            self._found(found)
        rows, target = check_rows(BUNDLED, str(self._device), self._extent)
        self._found(rows)
        draft = load_draft(BUNDLED, self._draft_device, "auto", self._extent.context)
        for found in check_texts(BUNDLED, target, draft, self._extent):
            self._found(found)

    def _compare_aligned(self, shape: str, agreement: float, scratch: Path) -> None:
        from aligned.making import AlignmentError

        if self._late(f"{shape} at agreement {agreement:g}"):
            return
        try:
            with aligned_pair(shape, agreement, self._device, scratch) as pair:
                # A step costs the same whatever the weights are.
                self._compare(pair, steps_too=agreement == AGREEMENTS[0])
        except AlignmentError as error:
            self._console.print(f"{shape} at agreement {agreement:g}: {error}")
            self._report.skipped.append(f"{shape} at agreement {agreement:g}")

    def _compare(self, pair: Pair, *, steps_too: bool = True) -> None:
        """Step costs and the speed of every system; what they wrote is checked too."""
        if self._late(pair.name):
            return
        if steps_too:
            self._time_steps(pair)
        speeds: list[Speed] = []
        settings = settings_of(
            pair,
            self._extent,
            target={"path": pair.target, "device": str(self._device)},
            draft={"path": pair.draft, "device": self._draft_device},
            serving={"engine_timeout_s": 30},
        )
        systems = systems_of(self._extent)
        with closing(compare(pair, settings, self._extent)) as measured:
            for speed in measured:
                speeds.append(speed)
                left = systems[len(speeds) :]
                if left and self._late(f"{pair.name}: {', '.join(left)}"):
                    break
        self._report.speeds[pair.name] = speeds
        eager = " (on a processor this is the eager engine)" if self._device.type == "cpu" else ""
        self._console.print(f"{pair.name}: every way to decode{eager}")
        for line in speed_lines(speeds):
            self._console.print(line)
        differing = [speed.system for speed in speeds if not speed.equal]
        detail = f"{', '.join(differing)} wrote another text" if differing else "all alike"
        self._found(Check(f"texts of {pair.name}", not differing, detail))
        self._forget()

    def _time_steps(self, pair: Pair) -> None:
        context = self._extent.context
        steps = []
        for model, load in (("target", load_target), ("draft", load_draft)):
            engine = load(pair, str(self._device), "auto", context)
            steps += step_costs(model, engine, self._extent)
            del engine
            self._forget()
        self._report.steps[pair.name] = steps
        self._console.print(f"{pair.name}, {steps[0].bandwidth_gb_s:.0f} GB/s copied")
        for line in step_lines(steps):
            self._console.print(line)

    def _forget(self) -> None:
        """Give the device's memory back, for another process or model."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _found(self, found: Check) -> None:
        self._report.checks.append(found)
        self._console.print(str(found))

    def _late(self, what: str) -> bool:
        late = time.monotonic() - self._started > self._report.budget_s
        if late:
            self._report.skipped.append(what)
        return late
