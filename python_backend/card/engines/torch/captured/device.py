"""The device that a model is to run on: whether it is there, and whether the kernels run on it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from card.engines.interface import EngineError
from card.engines.options import Dtype

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What the kernels compute in."""

_CAPABILITY = (8, 0)
"""Compute capability from which a product reads shared memory while it is being filled, and from
which bfloat16 is multiplied in hardware (Ampere)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What this process sees.

    build         the version of torch
    cuda          the CUDA version torch was built with; None: built without
    capabilities  compute capability of each visible CUDA device
    has_triton    whether Triton, the language of the kernels, is installed
    """

    build: str
    cuda: str | None
    capabilities: tuple[tuple[int, int], ...]
    has_triton: bool = True

    @classmethod
    def seen(cls) -> Devices:
        count = torch.cuda.device_count() if torch.version.cuda else 0
        return cls(
            str(torch.__version__),
            torch.version.cuda,
            tuple(torch.cuda.get_device_capability(index) for index in range(count)),
            importlib.util.find_spec("triton") is not None,
        )


def choose_device(wanted: str, devices: Devices) -> torch.device:
    """``cpu``, ``cuda`` (the first) or ``cuda:N``. Raises `EngineError` where it is not there or
    the kernels do not run on it."""
    device = torch.device(wanted)
    if device.type == "cpu":
        return device
    if devices.cuda is None:
        raise EngineError(
            f"device: {wanted} is set and this torch ({devices.build}) was built without CUDA; "
            "install a CUDA build of torch, or set device: cpu"
        )
    count = len(devices.capabilities)
    if not count:
        raise EngineError(
            f"device: {wanted} is set and torch {devices.build} sees no CUDA device; check the "
            "driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or set device: cpu"
        )
    index = device.index or 0
    if index >= count:
        names = ", ".join(f"cuda:{number}" for number in range(count))
        raise EngineError(f"device: {wanted} is not there; allowed: cpu, {names}")
    if devices.capabilities[index] < _CAPABILITY:
        found = ".".join(map(str, devices.capabilities[index]))
        raise EngineError(
            f"device: {wanted} is set and has compute capability {found}; the kernels need 8.0 or "
            "later (Ampere): take such a device, or set device: cpu"
        )
    if not devices.has_triton:
        raise EngineError(
            f"device: {wanted} is set and the package triton, the language of the kernels, is not "
            "installed; install it (pip install triton), or set device: cpu"
        )
    return torch.device("cuda", index)


def choose_dtype(wanted: Dtype, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16. Raises `EngineError` for what the kernels do not compute in."""
    if wanted not in _DTYPES:
        raise EngineError(
            f"dtype: {wanted} does not run on device: {device}; allowed: {', '.join(_DTYPES)}, or "
            "set device: cpu"
        )
    return _DTYPES[wanted]
