"""The device that a model is to run on: whether it is there, and what arithmetic is asked of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from card.engines.interface import EngineError
from card.engines.options import Dtype

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

_BFLOAT16_CAPABILITY = (8, 0)
"""Compute capability from which bfloat16 is multiplied in hardware (Ampere)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What this process sees.

    build         the version of torch
    cuda          the CUDA version torch was built with; None: built without
    capabilities  compute capability of each visible CUDA device
    """

    build: str
    cuda: str | None
    capabilities: tuple[tuple[int, int], ...]

    @classmethod
    def seen(cls) -> Devices:
        count = torch.cuda.device_count() if torch.version.cuda else 0
        return cls(
            str(torch.__version__),
            torch.version.cuda,
            tuple(torch.cuda.get_device_capability(index) for index in range(count)),
        )


def choose_device(wanted: str, devices: Devices) -> torch.device:
    """``cpu``, ``cuda`` (the first) or ``cuda:N``. Raises `EngineError` where it is not there."""
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
    return torch.device("cuda", index)


def choose_dtype(wanted: Dtype, device: torch.device, devices: Devices) -> torch.dtype:
    """``auto`` is bfloat16 where the device multiplies it, else float16.

    Raises `EngineError` for what the device does not compute in.
    """
    if wanted not in ("auto", *_DTYPES):
        raise EngineError(
            f"dtype: {wanted} does not run on device: {device}; allowed: auto, {', '.join(_DTYPES)}"
        )
    multiplies = (
        device.type == "cpu" or devices.capabilities[device.index or 0] >= _BFLOAT16_CAPABILITY
    )
    if wanted == "bfloat16" and not multiplies:
        raise EngineError(
            f"dtype: bfloat16 needs a device of compute capability 8.0; {device} has "
            f"{'.'.join(map(str, devices.capabilities[device.index or 0]))}: set dtype: float16"
        )
    if wanted == "auto":
        return torch.bfloat16 if multiplies else torch.float16
    return _DTYPES[wanted]


def forbid_varying_arithmetic() -> None:
    """Ask the matrix products for full accumulation and no split sums.

    TF32, partial sums rounded to 16 bits and sums split over the inner dimension each make a row's
    bits depend on the kernel that a shape happens to get.
    """
    # Read by cuBLAS when it first runs: one workspace, so that one shape always gets one kernel.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_float32_matmul_precision("highest")
    products = torch.backends.cuda.matmul
    try:
        # (reduced precision, split sums)
        products.allow_bf16_reduced_precision_reduction = (False, False)
        products.allow_fp16_reduced_precision_reduction = (False, False)
    except TypeError:
        # Torch before 2.10 takes the first alone, and lets no caller forbid split sums.
        products.allow_bf16_reduced_precision_reduction = False
        products.allow_fp16_reduced_precision_reduction = False
        return
    if torch.version.cuda is not None:
        # cuBLAS refuses a product that it may not split; cuBLASLt computes it.
        torch.backends.cuda.preferred_blas_library("cublaslt")
