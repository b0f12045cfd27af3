"""The conditions of a run: software, machine and settings."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench.in_process import InProcess
from bench.measurement import Task
from card.cores import usable_cores
from card.engines.processor import processor_name, resolve_dtype
from card.loading import choose_engine
from card.settings import REPOSITORY_ROOT


def conditions_of(
    pair: InProcess,
    load_before: float,
    prompts: Path,
    tasks: Sequence[Task],
    measured: Sequence[Task],
) -> dict[str, Any]:
    """The conditions of a run that has ended. This process is its command.

    load_before  one-minute load average before the benchmark began to work
    tasks        that would have been written with time enough; `measured`: those that were
    """
    return {
        **where_and_when(load_before),
        "settings": _inside(pair.settings.model_dump(mode="json")),
        "prompts": _inside(str(prompts.resolve())),
        "prompts_wanted": len({task.prompt for task in tasks}),
        "prompt_numbers": list(dict.fromkeys(task.seed for task in measured)),
        "max_tokens": max(task.max_tokens for task in tasks),
        "engines": [
            choose_engine(pair.settings, model)
            for model in (pair.settings.target, pair.settings.draft)
        ],
        "dtype": resolve_dtype(pair.settings.target.dtype),
        "row_invariant": pair.target.row_invariant,
        "draft_row_costs_ms": pair.engines.on("draft", pair.settings.draft.threads).row_costs_ms,
        "target_row_costs_ms": pair.target.row_costs_ms,
        "target_alone_share": pair.target.alone_share,
    }


def where_and_when(load_before: float) -> dict[str, Any]:
    """The command, the date and the machine of a run."""
    return {
        "command": shlex.join(["./scripts/bench", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor_name(),
            "cores": usable_cores(),
            "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
            "system": platform.platform(),
            "software": _software(),
            "load": load_before,
        },
    }


def described(conditions: Mapping[str, Any]) -> str:
    """The conditions in one paragraph."""
    names = ("engines", "dtype", "row_invariant", "prompts", "prompts_wanted", "max_tokens")
    said = {**conditions["machine"], **{name: conditions[name] for name in names}}
    said["prompts_measured"] = len(conditions["prompt_numbers"])
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in said.items()) + "."


def _inside(content: Any) -> Any:
    """Paths inside the repository relative to it."""
    return json.loads(json.dumps(content).replace(f"{REPOSITORY_ROOT}/", ""))


def _software() -> str:
    """Versions of the software. CARD's is the commit, with "-dirty" if files differ from it."""
    versions = [f"{name} {metadata.version(name)}" for name in ("openvino", "torch")]
    command = ["git", "-C", str(REPOSITORY_ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ", ".join([f"Python {platform.python_version()}", *versions, f"CARD {commit}"])
