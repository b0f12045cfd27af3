"""Kernels that are brought up while the one before still runs (programmatic dependent launch).

Between two kernels of a pass a device stands nearly idle for some microseconds, while the last
programs of one end and those of the next are brought up. A kernel that overlaps is brought up as
soon as every program of the one before has begun, and waits for its end before it reads or writes
anything.

Every program here waits, even one that has nothing to do: the next kernel takes the end of this one
for the end of all before it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

_CAPABILITY = (9, 0)
"""Compute capability from which a kernel can wait for the one before it."""


@cache
def launch_options(device: torch.device) -> dict[str, Any]:
    """What every kernel of a pass is launched with on such a device."""
    can_wait = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY
    if can_wait and hasattr(tl.extra.cuda, "gdc_wait"):  # Triton 3.3 or newer
        return {"OVERLAPS": True, "launch_pdl": True}
    return {"OVERLAPS": False}


@triton.jit
def await_previous(OVERLAPS: tl.constexpr):
    """Let the next kernel be brought up, and wait until all before this one have ended."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
