"""What is installed for this Python. TensorRT-LLM is not imported: that opens devices."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

STANDIN = "stand-in"
"""In the summary of the package that the tests have in its place."""


@dataclass(frozen=True)
class Installation:
    """A version, and whether it is NVIDIA's."""

    version: str
    is_standin: bool

    @classmethod
    def found(cls) -> Installation | None:
        """None: there is none."""
        try:
            package = metadata.metadata("tensorrt_llm")
        except metadata.PackageNotFoundError:
            return None
        return cls(package["Version"], STANDIN in (package["Summary"] or ""))

    def __str__(self) -> str:
        return (
            f"the tests' stand-in of TensorRT-LLM {self.version}"
            if self.is_standin
            else (f"TensorRT-LLM {self.version}")
        )


def is_served_from_here() -> bool:
    """Whether Triton's stubs will find this repository's package: they do not read PYTHONPATH."""
    tried = [sys.executable, "-I", "-c", "import card"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0
