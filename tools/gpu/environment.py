"""One line about the device and the software that a result belongs to."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from card.engines.processor import computes_in_bfloat16


@dataclass(frozen=True)
class Environment:
    """Where a check ran.

    device         as asked for
    name           of the device, as its driver gives it
    memory_gib     of the device; 0 on a processor
    count          visible CUDA devices
    """

    device: str
    name: str
    capability: str
    memory_gib: float
    count: int
    torch_version: str
    cuda_version: str
    python_version: str

    @classmethod
    def of(cls, device: torch.device) -> Environment:
        software = str(torch.__version__), torch.version.cuda or "none", platform.python_version()
        if device.type == "cpu":
            bfloat16 = "with bfloat16" if computes_in_bfloat16() else "without bfloat16"
            return cls("cpu", platform.machine(), bfloat16, 0.0, 0, *software)
        found = torch.cuda.get_device_properties(device)
        return cls(
            str(device),
            found.name,
            f"{found.major}.{found.minor}",
            found.total_memory / (1 << 30),
            torch.cuda.device_count(),
            *software,
        )

    def __str__(self) -> str:
        memory = f", {self.memory_gib:.0f} GiB, {self.count} visible" if self.count else ""
        return (
            f"{self.device}: {self.name} ({self.capability}{memory}); torch {self.torch_version}, "
            f"CUDA {self.cuda_version}, Python {self.python_version}"
        )
