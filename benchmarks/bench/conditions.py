"""What was run, on what machine, with which settings."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench.contest import Completion
from bench.in_process import InProcess
from bench.measurement import Task
from card.cores import usable_cores
from card.engines.processor import processor_name
from card.settings import REPOSITORY_ROOT, Settings

BUSY_LOAD = 0.3
"""Load per core before the start above which figures are not to be trusted."""
FEW_PROMPTS = 4
"""Medians of fewer say little."""


@dataclass(frozen=True)
class Machine:
    """`load` is the one-minute load average before the benchmark began to work.

    torch, openvino  versions; None: not installed
    commit           of this repository, with "-dirty" if files differ from it; None: not known
    """

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    torch: str | None
    openvino: str | None
    load: float
    commit: str | None = None

    @property
    def software(self) -> str:
        """What computed, with versions."""
        known = (("CARD", self.commit), ("OpenVINO", self.openvino), ("PyTorch", self.torch))
        return ", ".join(f"{name} {version}" for name, version in known if version is not None)

    @property
    def is_busy(self) -> bool:
        return self.load > BUSY_LOAD * self.cores


def named_engines(engines: Mapping[str, str]) -> str:
    """What ran the models, as a report says it."""
    target, draft = engines["target"], engines["draft"]
    return f"engine {target}" if target == draft else f"engine {target} (target), {draft} (draft)"


@dataclass(frozen=True)
class Conditions:
    """`settings` are those that were used; `prompts_wanted` is how many prompts would have been
    measured with time enough; `prompt_numbers` are the places in the file, from 0, of those that
    were; `engines` tells what ran each model; `row_costs_ms` are, by threads, the medians of the
    milliseconds of a target pass by its rows, measured between the texts; `draft_row_costs_ms`
    those of a draft pass, measured at load; `target_row_costs_ms` those of a target pass, measured
    at load, by which CARD chose its rows, and `target_alone_share` the share of its time that one
    takes with all cores."""

    command: str
    date: str
    machine: Machine
    settings: dict[str, Any]
    prompts: str
    prompts_wanted: int
    prompt_numbers: Sequence[int]
    max_tokens: int
    engines: Mapping[str, str]
    dtype: str
    row_invariant: bool
    row_costs_ms: Mapping[int, Mapping[int, float]]
    draft_row_costs_ms: Mapping[int, float]
    target_row_costs_ms: Mapping[int, float]
    target_alone_share: float

    @property
    def extent(self) -> str:
        """What was written, as a report says it."""
        return (
            f"{counted(len(self.prompt_numbers))} of {self.prompts}, {self.max_tokens} tokens each"
        )

    @property
    def reservation(self) -> str | None:
        """What a reader has to keep in mind of so few prompts; None: nothing."""
        finished, said = len(self.prompt_numbers), []
        if finished < self.prompts_wanted:
            said.append(
                f"The time was over after {finished} of the {counted(self.prompts_wanted)} wanted; "
                "a larger --minutes has room for more."
            )
        if finished < FEW_PROMPTS:
            said.append(f"Medians over {counted(finished)} say little.")
        return " ".join(said) or None


def conditions_of(
    pair: InProcess,
    machine: Machine,
    prompts: Path,
    tasks: Sequence[Task],
    completions: Sequence[Completion],
    curves: Mapping[int, Mapping[int, float]],
) -> Conditions:
    """Of a run that has ended, begun on `machine` by the command that this process is."""
    return Conditions(
        command=shlex.join(["./scripts/bench", *sys.argv[1:]]),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        settings=portable(pair.settings),
        prompts=relative(prompts),
        prompts_wanted=len({task.prompt for task in tasks}),
        prompt_numbers=list(dict.fromkeys(completion.task.seed for completion in completions)),
        max_tokens=tasks[0].max_tokens,
        engines=pair.engines.names,
        dtype=pair.dtype,
        row_invariant=pair.target.row_invariant,
        row_costs_ms=curves,
        draft_row_costs_ms=pair.draft.row_costs_ms,
        target_row_costs_ms=pair.target.row_costs_ms,
        target_alone_share=pair.target.alone_share,
    )


def counted(prompts: int) -> str:
    return f"{prompts} prompt{'s' * (prompts != 1)}"


_FILES = (
    ("target", "path"),
    ("draft", "path"),
    ("draft_small", "path"),
    ("speculation", "ngram_table"),
)
"""Settings that name what models are made of."""


def portable(settings: Settings) -> dict[str, Any]:
    """The settings as JSON, paths inside the repository relative to it."""
    content = settings.model_dump(mode="json")
    for section, field in _FILES:
        if isinstance(path := getattr(getattr(settings, section), field), Path):
            content[section][field] = relative(path)
    return content


def relative(path: Path) -> str:
    """A path as people of this repository name it."""
    path = path.resolve()
    inside = path.is_relative_to(REPOSITORY_ROOT)
    return str(path.relative_to(REPOSITORY_ROOT) if inside else path.name)


def this_machine() -> Machine:
    return Machine(
        processor=processor_name(),
        cores=usable_cores(),
        memory_gib=round(psutil.virtual_memory().total / (1 << 30), 1),
        system=platform.platform(),
        python=platform.python_version(),
        torch=_version("torch"),
        openvino=_version("openvino"),
        load=round(os.getloadavg()[0], 2),
        commit=_commit(),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    if not (REPOSITORY_ROOT / ".git").exists():  # copied without its history
        return None
    command = ["git", "-C", str(REPOSITORY_ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
