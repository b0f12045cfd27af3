"""What NumPy holds of the element types of a KV cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

ELEMENTS: dict[ov.Type, np.dtype[Any]] = {
    ov.Type.bf16: np.dtype(np.int16),
    ov.Type.f16: np.dtype(np.float16),
    ov.Type.f32: np.dtype(np.float32),
}
"""NumPy knows no bfloat16; nothing is computed on these bits here."""
