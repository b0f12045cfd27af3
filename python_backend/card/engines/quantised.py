"""Detects Hugging Face checkpoints with quantised weights, which our engines do not support."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from card.engines.interface import EngineError

_CONFIGURED = ("quantization_config", "compression_config")
_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files in which older GPTQ and AWQ, and NVIDIA's tools, describe the quantisation."""
_TENSOR = re.compile(
    r".*\.(qweight|qzeros|g_idx|weight_packed|weight_scale(_inv|_2)?|input_scale|SCB|absmax)"
)
_DTYPE = re.compile(r"F[468](_.*)?")
_MATRIX = re.compile(r".*(_proj|embed_tokens|lm_head)\.weight")


class QuantisedError(EngineError):
    """A checkpoint is quantised; the message names the evidence."""


def check_not_quantised(path: Path, config: Mapping[str, Any]) -> None:
    """Check the configuration and the files beside the weights. Raises `QuantisedError`."""
    for field in _CONFIGURED:
        if (found := config.get(field)) is not None:
            method = found.get("quant_method") if isinstance(found, Mapping) else None
            raise _error(path, f"{field} of config.json says {method or 'so'}")
    if path.is_dir():
        for name in _FILES:
            if (path / name).exists():
                raise _error(path, f"{name} lies beside the weights")


def check_tensor_not_quantised(path: Path, name: str, dtype: str) -> None:
    """Check the dtype of one tensor. Raises `QuantisedError`."""
    whole_numbers = dtype[:1] in "IU" and _MATRIX.fullmatch(name)
    if whole_numbers or _TENSOR.fullmatch(name) or _DTYPE.fullmatch(dtype):
        raise _error(path, f"{name} is {dtype}")


def _error(path: Path, method: str) -> QuantisedError:
    return QuantisedError(
        f"{path}: the checkpoint is quantised ({method}), and quantised checkpoints are not "
        "supported; allowed: weights in float32, float16 or bfloat16, or a GGUF file; for a target "
        "that vLLM runs, set target.engine: vllm"
    )
