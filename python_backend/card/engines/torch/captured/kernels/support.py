"""Whether this process can run the kernels on a device."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess

import torch

log = logging.getLogger(__name__)

_DTYPES = (torch.bfloat16, torch.float16)

_CAPABILITY = (8, 0)
"""Compute capability from which a product reads shared memory while it is being filled."""


def can_run(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton is here, its kernels take the dtype, and a small one gives what torch gives.

    On a processor only Triton's interpreter runs them, which is for tests.
    """
    if importlib.util.find_spec("triton") is None:
        log.info("%s: no kernels of our own, for the package triton is not installed", device)
        return False
    if dtype not in _DTYPES:
        return False
    if device.type == "cpu":
        return os.environ.get("TRITON_INTERPRET") == "1"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    return _multiplies(device, dtype)


def _multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """A kernel is compiled when it first runs, which takes a C compiler and room for its cache."""
    from triton.errors import TritonError

    from card.engines.torch.captured.kernels.products import SkinnyLinear

    weight = torch.eye(64, device=device, dtype=dtype)
    try:
        found = SkinnyLinear(weight, None, 1).partial(weight).sum(0)
        right = torch.equal(found, weight.float())
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        log.warning("%s: no kernels of our own, for Triton cannot compile: %s", device, error)
        return False
    if not right:
        log.warning("%s: no kernels of our own, for Triton's products are wrong here", device)
    return right
