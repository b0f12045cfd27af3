"""What was run, on what machine, with which settings."""

from __future__ import annotations

import json
import os
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
from bench.runner import Completion
from card.cores import usable_cores
from card.engines.processor import processor_name
from card.settings import REPOSITORY_ROOT

BUSY_LOAD = 0.3
"""Above this load per core before the start, figures are too low."""


def load() -> float:
    """The one-minute load average."""
    return round(os.getloadavg()[0], 2)


def conditions_of(
    pair: InProcess,
    load_before: float,
    prompts: Path,
    tasks: Sequence[Task],
    completions: Sequence[Completion],
) -> dict[str, Any]:
    """Of a run that has ended, begun by the command that this process is.

    load_before  one-minute load average before the benchmark began to work
    tasks        that would have been measured with time enough
    """
    numbers = list(dict.fromkeys(completion.task.seed for completion in completions))
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
        "settings": _inside(pair.settings.model_dump(mode="json")),
        "prompts": _inside(str(prompts.resolve())),
        "prompts_wanted": len({task.prompt for task in tasks}),
        "prompt_numbers": numbers,
        "max_tokens": max(task.max_tokens for task in tasks),
        "engines": pair.engines.names,
        "dtype": pair.engines.dtype,
        "row_invariant": pair.target.row_invariant,
        "draft_row_costs_ms": pair.engines.on("draft", pair.settings.draft.threads).row_costs_ms,
        "target_row_costs_ms": pair.target.row_costs_ms,
        "target_alone_share": pair.target.alone_share,
    }


def described(conditions: Mapping[str, Any]) -> str:
    """The conditions in one paragraph."""
    machine, engines = conditions["machine"], conditions["engines"]
    return (
        f"{machine['processor']}, {machine['cores']} cores for every system, "
        f"{machine['memory_gib']:g} GiB, {machine['system']}, {machine['software']}, load "
        f"{machine['load']:g} before the start; engines {engines['target']} (target), "
        f"{engines['draft']} (draft) in {conditions['dtype']}, row-invariant: "
        f"{'yes' if conditions['row_invariant'] else 'no'}; {len(conditions['prompt_numbers'])} of "
        f"{conditions['prompts_wanted']} prompts of {conditions['prompts']}, "
        f"{conditions['max_tokens']} tokens each. `benchmarks/README.md` explains the columns."
    )


def _inside(content: Any) -> Any:
    """Paths inside the repository relative to it."""
    return json.loads(json.dumps(content).replace(f"{REPOSITORY_ROOT}/", ""))


def _software() -> str:
    """What computed, with versions; CARD's is the commit, "-dirty" if files differ from it."""
    found = [f"Python {platform.python_version()}"]
    for package in ("openvino", "torch"):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    command = ["git", "-C", str(REPOSITORY_ROOT), "describe", "--always", "--dirty"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ", ".join([*found, *([f"CARD {said}"] if said else [])])
