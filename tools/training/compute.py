"""Where and in which precision models run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch


class ComputeError(ValueError):
    """A device or precision that this machine does not have."""


@dataclass(frozen=True)
class Compute:
    """A device, and whether matrices are multiplied in bfloat16 there."""

    device: torch.device
    bf16: bool

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def device_of(name: str) -> torch.device:
    """The device of a name: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda``.

    Raises:
        ComputeError: another name, or no GPU.
    """
    if name not in {"auto", "cpu", "cuda"}:
        raise ComputeError(f"--device {name}: must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ComputeError("--device cuda: this PyTorch sees no GPU; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def compute_of(device: str, precision: str) -> Compute:
    """What the options ``--device`` and ``--precision`` ask for.

    Raises:
        ComputeError: an option has a value that is not allowed, or not on this machine.
    """
    chosen = device_of(device)
    if precision not in {"auto", "bf16", "fp32"}:
        raise ComputeError(f"--precision {precision}: must be auto, bf16 or fp32")
    if precision == "auto":
        # bf16 without hardware for it is emulated, and slower than fp32.
        fast = chosen.type == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16"))
        precision = "bf16" if fast else "fp32"
    return Compute(chosen, precision == "bf16")
