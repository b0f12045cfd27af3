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


def device_of(name: str) -> torch.device:
    """The device of a name: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda``.

    Raises:
        TrainingError: another name, or no GPU.
    """
    if name not in {"auto", "cpu", "cuda"}:
        raise TrainingError(f"--device {name}: must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainingError("--device cuda: this PyTorch sees no GPU; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def compute_of(device: str) -> Compute:
    """What the option ``--device`` asks for; in bfloat16 where the hardware has it: emulated, it is
    slower than float32.

    Raises:
        TrainingError: the option has a value that is not allowed, or not on this machine.
    """
    chosen = device_of(device)
    fast = chosen.type == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    return Compute(chosen, fast)
