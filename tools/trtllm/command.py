"""The command line: what is checked in which order, and the verdict."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from card.engines.interface import EngineError
from card.settings import SettingsError, load_settings
from card_client import CardError
from importing.checks import PairError
from loading.service import running_service
from loading.supervised import SupervisorEndedError
from trtllm.installation import Installation, is_served_from_here
from trtllm.own_modes import DRAFT_TARGET, PLAIN, OwnModeError, measure
from trtllm.pair import Devices, Pair
from trtllm.report import Check, Report, Speed
from trtllm.served import Served

FAILED, REFUSED = 1, 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def check(
    target: Annotated[
        str, typer.Option(help="Folder, or name on Hugging Face, of the target model.")
    ] = "Qwen/Qwen2.5-7B-Instruct",
    draft: Annotated[
        str, typer.Option(help="Folder, or name on Hugging Face, of the draft model.")
    ] = "Qwen/Qwen2.5-0.5B-Instruct",
    target_device: Annotated[int, typer.Option(min=0, help="CUDA device of the target.")] = 0,
    draft_device: Annotated[
        int, typer.Option(min=0, help="CUDA device of the draft; with one GPU: 0.")
    ] = 1,
    limit: Annotated[int, typer.Option(min=1, help="How many prompts; as many streams.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens after each.")] = 128,
    results: Annotated[Path, typer.Option(help="File for what is found, as JSON.")] = Path(
        "trtllm_check.json"
    ),
) -> None:
    """Serve a pair through this repository on TensorRT-LLM and compare it with NVIDIA's own modes.

    Exit code 0: everything ran and every check held, 1: not so, 2: nothing was begun.
    """
    installation = Installation.found()
    if installation is None:
        _refuse(
            "tensorrt_llm is not installed for this Python; run it in NVIDIA's container "
            "(nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3) with PYTHON set to its Python"
        )
    if not is_served_from_here():
        _refuse(
            f"Triton's processes will not find this package, for they read no PYTHONPATH: run "
            f"`{sys.executable} -m pip install --no-deps --editable .` in the repository first"
        )
    try:
        pair = Pair.imported(target, draft)
        end_id = pair.end_id
    except PairError as error:
        _refuse(str(error))
    report = Report(installation, str(pair.target.path), str(pair.draft.path))
    try:
        report.write(results)
    except OSError as error:
        _refuse(f"--results: {error}")
    run = _Run(report, pair, end_id, results)
    with tempfile.TemporaryDirectory(prefix="card-trtllm-") as folder:
        run.everything(Path(folder), Devices(target_device, draft_device), limit, max_tokens)
    raise typer.Exit(0 if report.passed else FAILED)


def _refuse(why: str) -> NoReturn:
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"trtllm_check: {why}")
    raise typer.Exit(REFUSED)


class _Run:
    """One run: what is found is said and written down at once."""

    def __init__(self, report: Report, pair: Pair, end_id: int, results: Path) -> None:
        self._report = report
        self._pair = pair
        self._end_id = end_id
        self._results = results
        self._console = Console(highlight=False, markup=False, soft_wrap=True)

    def everything(self, folder: Path, devices: Devices, limit: int, max_tokens: int) -> None:
        """Our service first; NVIDIA's own modes when the devices are free again."""
        self._say(f"{self._report.installation}; {self._report.target} with {self._report.draft}")
        settings_file = folder / "settings.yaml"
        self._pair.write_settings(settings_file, devices, limit, max_tokens)
        prompts = self._pair.prompts(limit)
        served = self._serve(settings_file, folder / "service.log", limit, max_tokens)
        for mode in (PLAIN, DRAFT_TARGET):
            try:
                speed, tokens = measure(settings_file, mode, prompts, self._end_id)
            except OwnModeError as error:
                self._unfinished(str(error))
                continue
            self._found(speed)
            if served is not None and served.alone:
                self._found(self._compared(mode, served.alone, tokens))
        self._report.ended = True
        self._say(self._report.verdict())
        self._report.write(self._results)

    def _serve(self, file: Path, log: Path, limit: int, max_tokens: int) -> Served | None:
        """None: the service did not start."""

        async def ask(served: Served) -> None:
            async for found in served.findings():
                self._found(found)

        try:
            with running_service(load_settings(file), file, log) as service:
                served = Served(service, self._pair.prompts(limit), max_tokens)
                try:
                    asyncio.run(ask(served))
                except (CardError, OSError) as error:
                    self._unfinished(f"our service: {error}")
                return served
        except (SupervisorEndedError, SettingsError, EngineError) as error:
            self._say(log.read_text(errors="replace")[-4000:] if log.exists() else "")
            self._unfinished(f"our service did not start: {error}")
            return None

    def _compared(self, mode: str, alone: list[str], tokens: list[list[int]]) -> Check:
        """Whether our target alone writes what NVIDIA's own mode writes."""
        texts = [self._pair.text_of(each) for each in tokens]
        alike = sum(ours == theirs for ours, theirs in zip(alone, texts, strict=True))
        detail = f"{alike} of {len(texts)} texts are those of our target alone"
        return Check(f"texts of NVIDIA's own, {mode}", alike == len(texts), detail)

    def _found(self, found: Check | Speed) -> None:
        kept = self._report.checks if isinstance(found, Check) else self._report.speeds
        kept.append(found)  # type: ignore[arg-type]
        self._say(str(found))
        self._report.write(self._results)

    def _unfinished(self, why: str) -> None:
        self._report.unfinished.append(why)
        self._say(f"not finished: {why}")
        self._report.write(self._results)

    def _say(self, line: str) -> None:
        self._console.print(line)
