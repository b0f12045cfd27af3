"""The command line: the checks in their order, and the verdict."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import yaml

from bench.prompts import Prompt, read_prompts
from card.engines.interface import EngineError
from card.settings import REPOSITORY_ROOT, SettingsError, load_settings
from card_client import CardError
from importing.checks import Model, PairError, Verdict, check_pair
from loading.service import running_service
from loading.supervised import ProcessEndedError
from trtllm.own_modes import DRAFT_TARGET, PLAIN, OwnModeError, measure
from trtllm.report import Check, Installation, Report, Speed, is_served_from_here
from trtllm.served import Served

FAILED, REFUSED = 1, 2
PROMPT_TOKENS = 512
"""Most of a prompt."""

_SHARED_FRACTIONS = {"target": 0.5, "draft": 0.3}
"""Of the free memory, for the KV cache of each model where both have one device."""

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
        pair = {"target": Model.read(_folder(target)), "draft": Model.read(_folder(draft))}
        for finding in check_pair(pair["draft"], pair["target"]):
            if finding.verdict is Verdict.UNMET:
                raise PairError(f"{finding.need}: {finding.detail}")
        report = Report(installation, str(pair["target"].path), str(pair["draft"].path))
        report.write(results)
    except PairError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"--results: {error}")
    devices = {"target": target_device, "draft": draft_device}
    with tempfile.TemporaryDirectory(prefix="card-trtllm-") as folder:
        settings_file = Path(folder, "settings.yaml")
        content = _settings(pair, devices, limit, max_tokens)
        settings_file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        _Run(report, pair["target"], results, limit).everything(settings_file, max_tokens)
    raise typer.Exit(0 if report.passed else FAILED)


def _refuse(why: str) -> NoReturn:
    typer.echo(f"trtllm_check: {why}", err=True)
    raise typer.Exit(REFUSED)


def _folder(name: str) -> Path:
    """A folder as it is; anything else is fetched by its name, or found in the library's cache."""
    if Path(name).exists():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PairError(
            f"{name} is no folder here and cannot be fetched: {str(error).splitlines()[0]}"
        ) from error


def _settings(
    pair: dict[str, Model], devices: dict[str, int], streams: int, max_tokens: int
) -> dict[str, object]:
    """Those of a service of TensorRT-LLM with both models."""
    runtimes: dict[str, dict[str, object]] = {role: {"devices": [devices[role]]} for role in pair}
    if devices["target"] == devices["draft"]:
        for role, fraction in _SHARED_FRACTIONS.items():
            runtimes[role]["kv_fraction"] = fraction
    models = {
        role: {"path": str(model.path), "tensorrt_llm": runtimes[role]}
        for role, model in pair.items()
    }
    return {
        "engine": "tensorrt_llm",
        **models,
        "speculation": {"rows": 8, "depth": 16},
        "cache": {"slots": streams},
        "limits": {
            "prompt_tokens": PROMPT_TOKENS,
            "max_tokens": max_tokens,
            "context_tokens": PROMPT_TOKENS + max_tokens,
        },
        "serving": {"load_timeout_s": 900},
    }


class _Run:
    """One run: prints and saves each finding at once."""

    def __init__(self, report: Report, target: Model, results: Path, limit: int) -> None:
        self._report = report
        self._results = results
        self._tokenizer = target.files.tokenizer()
        self._end_id = next((ids[0] for ids in target.ends.values() if ids), -1)
        found = read_prompts(REPOSITORY_ROOT / "benchmarks/prompts.jsonl", self._tokenizer, None)
        fitting = [prompt for prompt in found if len(prompt.tokens) <= PROMPT_TOKENS]
        self._prompts: list[Prompt] = fitting[:limit]

    def everything(self, settings_file: Path, max_tokens: int) -> None:
        """Our service first; NVIDIA's own modes when the devices are free again."""
        report = self._report
        typer.echo(f"{report.installation}; {report.target} with {report.draft}")
        alone = self._serve(settings_file, max_tokens)
        for mode in (PLAIN, DRAFT_TARGET):
            try:
                speed, tokens = measure(settings_file, mode, self._prompts, self._end_id)
            except OwnModeError as error:
                self._unfinished(str(error))
                continue
            self._found(speed)
            if alone:
                self._found(self._compared(mode, alone, tokens))
        report.ended = True
        typer.echo(report.verdict())
        report.write(self._results)

    def _serve(self, file: Path, max_tokens: int) -> list[str]:
        """Query our service; returns its target's own texts, empty if it did not start."""
        log = file.with_name("service.log")
        try:
            with running_service(load_settings(file), file, log) as service:
                served = Served(service, self._prompts, max_tokens)
                try:
                    asyncio.run(self._ask(served))
                except (CardError, OSError) as error:
                    self._unfinished(f"our service: {error}")
                return served.alone
        except (ProcessEndedError, SettingsError, EngineError) as error:
            typer.echo(log.read_text(errors="replace")[-4000:] if log.exists() else "")
            self._unfinished(f"our service did not start: {error}")
            return []

    async def _ask(self, served: Served) -> None:
        async for found in served.findings():
            self._found(found)

    def _compared(self, mode: str, alone: list[str], tokens: list[list[int]]) -> Check:
        """Whether our target alone writes the text of NVIDIA's own mode."""
        texts = [self._tokenizer.decode(each, skip_special_tokens=True) for each in tokens]
        alike = sum(ours == theirs for ours, theirs in zip(alone, texts, strict=True))
        detail = f"{alike} of {len(texts)} texts are those of our target alone"
        return Check(f"texts of NVIDIA's own, {mode}", alike == len(texts), detail)

    def _found(self, found: Check | Speed) -> None:
        if isinstance(found, Check):
            self._report.checks.append(found)
        else:
            self._report.speeds.append(found)
        typer.echo(str(found))
        self._report.write(self._results)

    def _unfinished(self, why: str) -> None:
        self._report.unfinished.append(why)
        typer.echo(f"not finished: {why}")
        self._report.write(self._results)
