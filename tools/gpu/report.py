"""The findings as lines, and as a JSON file that is complete at every moment."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import torch

from card.engines.processor import computes_in_bfloat16


def environment_of(device: torch.device) -> dict[str, Any]:
    """Where a check runs: the device as its driver names it, and the software."""
    software = {
        "device": str(device),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "none",
        "python": platform.python_version(),
    }
    if device.type == "cpu":
        return {**software, "name": platform.machine(), "bfloat16": computes_in_bfloat16()}
    found = torch.cuda.get_device_properties(device)
    return {
        **software,
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory_gib": round(found.total_memory / (1 << 30)),
        "visible": torch.cuda.device_count(),
    }


@dataclass(frozen=True)
class Check:
    """One promise and whether it was kept; `figures` is what was measured."""

    name: str
    passed: bool
    detail: str
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name}: {self.detail}"


@dataclass(frozen=True)
class Timed:
    """One row of a pair's table; `table` is steps or speeds."""

    pair: str
    table: str
    figures: dict[str, Any]

    def __str__(self) -> str:
        values = (
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.figures.items()
        )
        return f"     {self.table}: {', '.join(values)}"


Found = Check | Timed
"""One finding of a phase."""

State = Literal["running", "finished", "failed", "over its time", "cut off", "not begun"]


@dataclass
class PhaseRecord:
    """How one phase went.

    detail  why it did not finish
    stacks  where every thread of every process of the phase was when its time was over
    """

    name: str
    limit_s: float = 0.0
    state: State = "not begun"
    seconds: float = 0.0
    detail: str = ""
    stacks: list[str] = field(default_factory=list)


Tables = dict[str, list[dict[str, Any]]]
"""Rows of figures by pair."""


@dataclass
class Report:
    """Everything one run found. `file` is where it is kept; None: nowhere."""

    environment: dict[str, Any]
    file: Path | None = None
    seconds: float = 0.0
    phases: list[PhaseRecord] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    steps: Tables = field(default_factory=dict)
    speeds: Tables = field(default_factory=dict)

    def add(self, found: Found) -> list[str]:
        """Add a finding. Returns the lines that report it."""
        if isinstance(found, Check):
            self.checks.append(found)
            return [str(found)]
        tables: Tables = getattr(self, found.table)
        is_first = found.pair not in tables
        tables.setdefault(found.pair, []).append(found.figures)
        return [*([f"{found.pair}:"] if is_first else ()), str(found)]

    @property
    def passed(self) -> bool:
        """Whether every phase finished, and every check that was made holds."""
        finished = bool(self.phases) and all(phase.state == "finished" for phase in self.phases)
        return finished and all(check.passed for check in self.checks)

    def verdict(self) -> str:
        """The last line."""
        failed = [check.name for check in self.checks if not check.passed]
        unfinished = [f"{p.name} ({p.state})" for p in self.phases if p.state != "finished"]
        said = f"{'PASS' if self.passed else 'FAIL'}: {len(self.checks) - len(failed)} of "
        said += f"{len(self.checks)} checks on {self.environment['device']} in {self.seconds:.0f} s"
        for what, names in (("failed", failed), ("not finished", unfinished)):
            said += f"; {what}: {', '.join(names)}" if names else ""
        if self.environment["device"] == "cpu":
            said += "; no GPU was used, so this says nothing of one"
        return said

    def write(self) -> None:
        """Save all findings so far, atomically. Raises `OSError`."""
        if self.file is None:
            return
        content: dict[str, Any] = {"date": datetime.now().astimezone().isoformat()}
        content |= {"verdict": self.verdict()} | asdict(self)
        del content["file"]
        written = self.file.with_suffix(".json.tmp")
        written.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(written, self.file)
