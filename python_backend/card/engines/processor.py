"""The number formats and the name of the processor."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from card.engines.options import Dtype

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


_DESCRIBING = ("vendor_id", "cpu family", "model", "stepping", "microcode", "flags")
"""Constant fields of /proc/cpuinfo that distinguish processors."""


ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA"
"""A variable that forbids instructions to oneDNN, on which OpenVINO and torch compute."""
_WITHOUT_BFLOAT16 = frozenset(
    {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
)
"""Values of that variable."""


@cache
def computes_in_bfloat16() -> bool:
    """Whether products of bfloat16 are an instruction here; elsewhere float32 is faster."""
    if os.environ.get(ONEDNN_LIMIT, "").upper() in _WITHOUT_BFLOAT16:
        return False
    return not _BFLOAT16_FLAGS.isdisjoint(_first_core().get("flags", "").split())


@cache
def packs_bfloat16() -> bool:
    """Whether torch can lay out matrices of bfloat16 for its products here."""
    flags = set(_first_core().get("flags", "").split())
    return "avx_ne_convert" in flags or {"avx512bw", "avx512vl", "avx512dq"} <= flags


@cache
def multiplies_in_tiles() -> bool:
    """Whether it has tiles for products of bfloat16 (AMX), which libraries use for many rows."""
    return "amx_bf16" in _first_core().get("flags", "").split()


@cache
def describe_processor() -> str:
    """A text that differs between processors that may compute differently."""
    core = _first_core()
    return "; ".join(f"{name}: {value}" for name, value in core.items() if name in _DESCRIBING)


def processor_name() -> str:
    """The processor's own name."""
    return _first_core().get("model name") or platform.machine()


def _first_core() -> dict[str, str]:
    text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def resolve_dtype(wanted: Dtype) -> Dtype:
    """``auto`` becomes bfloat16 or float32; anything else stays what it is."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if computes_in_bfloat16() else "float32"
