"""Where and in which precision models run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from training.errors import TrainingError


@dataclass(frozen=True)
class Compute:
    """A device, and whether matrices are multiplied in bfloat16 there."""

    device: torch.device
    bf16: bool

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


FLOAT32 = Compute(torch.device("cpu"), bf16=False)


def compute_of(device: str) -> Compute:
    """What the option ``--device`` asks for: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda``.
    It computes in bfloat16 where the hardware has it: emulated, it is slower than float32.

    Raises:
        TrainingError: the option has a value that is not allowed, or not on this machine.
    """
    if device not in {"auto", "cpu", "cuda"}:
        raise TrainingError(f"--device {device}: must be auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("--device cuda: this PyTorch sees no GPU; use --device cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    fast = device == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    return Compute(torch.device(device), fast)
