"""Whether this process can run the kernels on a device."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)

_DTYPES = (torch.bfloat16, torch.float16)

_CAPABILITY = (8, 0)
"""Compute capability from which a product reads shared memory while it is being filled."""


def can_run(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton is here and its kernels take the dtype and the device.

    On a processor only Triton's interpreter runs them, which is for tests.
    """
    if importlib.util.find_spec("triton") is None:
        log.info("%s: no kernels of our own, for the package triton is not installed", device)
        return False
    if dtype not in _DTYPES:
        return False
    if device.type == "cpu":
        return os.environ.get("TRITON_INTERPRET") == "1"
    return torch.cuda.get_device_capability(device) >= _CAPABILITY


def failure_of(run: Callable[[], object]) -> str | None:
    """Why kernels did not run; None: they did. Each is compiled when it first runs, which takes a C
    compiler and room for its cache."""
    from triton.errors import TritonError

    try:
        run()
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return None
