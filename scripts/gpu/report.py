"""What was found, as lines and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu.environment import Environment
from gpu.steps import StepCost
from gpu.systems import Speed


@dataclass(frozen=True)
class Check:
    """One promise and whether it was kept; `figures` is what was measured."""

    name: str
    passed: bool
    detail: str
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name}: {self.detail}"


@dataclass
class Report:
    """Everything one run found."""

    environment: Environment
    budget_s: float
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    steps: dict[str, list[StepCost]] = field(default_factory=dict)
    """By pair."""
    speeds: dict[str, list[Speed]] = field(default_factory=dict)
    """By pair."""
    skipped: list[str] = field(default_factory=list)
    """What there was no time for."""

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def verdict(self) -> str:
        """The last line."""
        failed = [check.name for check in self.checks if not check.passed]
        word = "PASS" if self.passed else "FAIL"
        said = f"{len(self.checks) - len(failed)} of {len(self.checks)} checks on "
        said += f"{self.environment.device} in {self.seconds:.0f} s"
        if failed:
            said += f"; failed: {', '.join(failed)}"
        if self.skipped:
            said += f"; no time for: {', '.join(self.skipped)}"
        if self.environment.device == "cpu":
            said += "; no GPU was used, so this says nothing of one"
        return f"{word}: {said}"

    def write(self, folder: Path) -> Path:
        """Save as JSON, named by the time."""
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now().astimezone()
        file = folder / f"{now:%Y-%m-%dT%H%M%S}-gpu.json"
        content: dict[str, Any] = {"date": now.isoformat(), "verdict": self.verdict()}
        content |= asdict(self)
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return file


def step_lines(steps: list[StepCost]) -> list[str]:
    """A table of step costs."""
    lines = [f"{'model':<8}{'rows':>5}{'ms':>10}{'floor ms':>10}{'of floor':>10}"]
    lines += [
        f"{step.model:<8}{step.rows:>5}{step.ms:>10.3f}{step.floor_ms:>10.3f}"
        f"{step.floor_ms / step.ms:>10.0%}"
        for step in steps
    ]
    return lines


def speed_lines(speeds: list[Speed]) -> list[str]:
    """A table of every way to decode."""
    alone = speeds[0].tokens_per_s
    headings = ("tokens/s", "ratio", "tokens/step", "ms/step", "contention")
    lines = [f"{'system':<20}" + "".join(f"{heading:>12}" for heading in headings)]
    lines += [
        f"{speed.system:<20}{speed.tokens_per_s:>12.1f}{speed.tokens_per_s / alone:>12.2f}"
        f"{speed.tokens_per_step:>12.2f}{speed.step_ms:>12.3f}{speed.contention:>12.2f}"
        for speed in speeds
    ]
    return lines
