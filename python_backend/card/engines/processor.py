"""What the processor computes in."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from card.engines.options import Dtype

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


@cache
def computes_in_bfloat16() -> bool:
    """Whether products of bfloat16 are an instruction here; elsewhere float32 is faster."""
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("flags"):
            return not _BFLOAT16_FLAGS.isdisjoint(line.split())
    return False


def resolve_dtype(wanted: Dtype) -> Dtype:
    """``auto`` becomes bfloat16 or float32; anything else stays what it is."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if computes_in_bfloat16() else "float32"
