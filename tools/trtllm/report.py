"""The installed software and the findings of one run, as lines and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Installation:
    """The installed TensorRT-LLM, and whether it is the tests' stand-in. It is not imported: that
    opens devices."""

    version: str
    is_standin: bool

    @classmethod
    def found(cls) -> Installation | None:
        """None: there is none."""
        try:
            package = metadata.metadata("tensorrt_llm")
        except metadata.PackageNotFoundError:
            return None
        return cls(package["Version"], "stand-in" in (package["Summary"] or ""))

    def __str__(self) -> str:
        return f"{'the stand-in of ' if self.is_standin else ''}TensorRT-LLM {self.version}"


def is_served_from_here() -> bool:
    """Whether Triton's stubs will find this repository's package: they do not read PYTHONPATH."""
    tried = [sys.executable, "-I", "-c", "import card"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Check:
    """One promise and whether it was kept."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name}: {self.detail}"


@dataclass(frozen=True)
class Speed:
    """One way to decode, greedy, one stream: the median of the prompts.

    first_token_s  of the texts, in seconds
    """

    system: str
    tokens_per_s: float
    first_token_s: float

    def __str__(self) -> str:
        return f"{self.system:<40}{self.tokens_per_s:>10.1f} tokens/s{self.first_token_s:>10.3f} s"


@dataclass
class Report:
    """Everything that was found.

    unfinished  what could not be tried, and why
    ended       whether all was tried; a run that is killed leaves it false
    """

    installation: Installation
    target: str
    draft: str
    checks: list[Check] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def passed(self) -> bool:
        """Whether all was tried and every check held."""
        tried = self.ended and bool(self.checks) and not self.unfinished
        return tried and all(check.passed for check in self.checks)

    def verdict(self) -> str:
        """The last line."""
        failed = [check.name for check in self.checks if not check.passed]
        said = f"{len(self.checks) - len(failed)} of {len(self.checks)} checks with "
        said += str(self.installation)
        if failed:
            said += f"; failed: {', '.join(failed)}"
        if unfinished := [*self.unfinished, *([] if self.ended else ["the run"])]:
            said += f"; not finished: {'; '.join(unfinished)}"
        if self.installation.is_standin:
            said += "; nothing of NVIDIA's ran, so this says nothing of TensorRT-LLM"
        return f"{'PASS' if self.passed else 'FAIL'}: {said}"

    def write(self, file: Path) -> None:
        """Save it: a reader finds the file before or after, never in between."""
        content: dict[str, Any] = {"date": datetime.now().astimezone().isoformat()}
        content |= {"verdict": self.verdict(), "passed": self.passed} | asdict(self)
        written = file.with_suffix(".json.tmp")
        written.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(written, file)
