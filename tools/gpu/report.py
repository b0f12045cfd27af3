"""What was found, as lines and as JSON that is whole at every moment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gpu.environment import Environment
from gpu.peers import PeerSpeed
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


@dataclass(frozen=True)
class Timed:
    """One row of a pair's table."""

    pair: str
    row: StepCost | Speed | PeerSpeed


Found = Check | Timed
"""What a phase finds in one step."""

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


@dataclass
class Report:
    """Everything one run found. `file` is where it is kept; None: nowhere."""

    environment: Environment
    file: Path | None = None
    seconds: float = 0.0
    phases: list[PhaseRecord] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    steps: dict[str, list[StepCost]] = field(default_factory=dict)
    """By pair."""
    speeds: dict[str, list[Speed]] = field(default_factory=dict)
    """By pair."""
    peers: dict[str, list[PeerSpeed]] = field(default_factory=dict)
    """By pair."""

    def add(self, found: Found) -> list[str]:
        """Take in what was found. Returns the lines that say so."""
        if isinstance(found, Check):
            self.checks.append(found)
            return [str(found)]
        if isinstance(found.row, StepCost):
            steps = self.steps.setdefault(found.pair, [])
            steps.append(found.row)
            heading = step_heading(found.pair, found.row)
            return [*(heading if len(steps) == 1 else ()), step_line(found.row)]
        if isinstance(found.row, PeerSpeed):
            peers = self.peers.setdefault(found.pair, [])
            peers.append(found.row)
            return [peer_line(found.row)]
        speeds = self.speeds.setdefault(found.pair, [])
        alike = [speed for speed in speeds if speed.demand == found.row.demand]
        speeds.append(found.row)
        line = speed_line(found.row, alike[0] if alike else found.row)
        said = speeds[-2].demand == found.row.demand if len(speeds) > 1 else False
        return [line] if said else [*speed_heading(found.pair, found.row), line]

    @property
    def passed(self) -> bool:
        """Whether every phase finished, and every check that was made holds."""
        finished = bool(self.phases) and all(phase.state == "finished" for phase in self.phases)
        return finished and all(check.passed for check in self.checks)

    def verdict(self) -> str:
        """The last line."""
        failed = [check.name for check in self.checks if not check.passed]
        unfinished = [f"{p.name} ({p.state})" for p in self.phases if p.state != "finished"]
        word = "FAIL" if not self.passed else "PASS" if self.checks else "NOTHING CHECKED"
        said = f"{len(self.checks) - len(failed)} of {len(self.checks)} checks on "
        said += f"{self.environment.device} in {self.seconds:.0f} s"
        if failed:
            said += f"; failed: {', '.join(failed)}"
        if unfinished:
            said += f"; not finished: {', '.join(unfinished)}"
        if self.environment.device == "cpu":
            said += "; no GPU was used, so this says nothing of one"
        return f"{word}: {said}"

    def write(self) -> None:
        """Save what was found so far: a reader finds the file before or after, never in between."""
        if self.file is None:
            return
        content: dict[str, Any] = {"date": datetime.now().astimezone().isoformat()}
        content |= {"verdict": self.verdict()} | asdict(self)
        del content["file"]
        written = self.file.with_suffix(".json.tmp")
        try:
            written.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            os.replace(written, self.file)
        except OSError:
            written.unlink(missing_ok=True)
            raise


def named_by_time(folder: Path) -> Path:
    """A file for the results of a run that begins now, in a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{datetime.now().astimezone():%Y-%m-%dT%H%M%S}-gpu.json"


def step_heading(pair: str, first: StepCost) -> tuple[str, str]:
    return (
        f"{pair}, {first.bandwidth_gb_s:.0f} GB/s copied",
        f"{'model':<8}{'rows':>5}{'ms':>10}{'floor ms':>10}{'of floor':>10}",
    )


def step_line(step: StepCost) -> str:
    return (
        f"{step.model:<8}{step.rows:>5}{step.ms:>10.3f}{step.floor_ms:>10.3f}"
        f"{step.floor_ms / step.ms:>10.0%}"
    )


def speed_heading(pair: str, first: Speed) -> tuple[str, str]:
    headings = ("tokens/s", "ratio", "tokens/step", "ms/step", "contention")
    return (
        f"{pair}: {first.demand}",
        f"{'system':<20}" + "".join(f"{heading:>12}" for heading in headings),
    )


def speed_line(speed: Speed, alone: Speed) -> str:
    return (
        f"{speed.system:<20}{speed.tokens_per_s:>12.1f}"
        f"{speed.tokens_per_s / alone.tokens_per_s:>12.2f}"
        f"{speed.tokens_per_step:>12.2f}{speed.step_ms:>12.3f}{speed.contention:>12.2f}"
    )


def peer_line(peer: PeerSpeed) -> str:
    return f"{peer.system:<50}{peer.tokens_per_s:>12.1f} tokens/s"
