"""Inputs of a request as tensors of Triton's client."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import InferInput

DTYPES = {
    **dict.fromkeys(
        (
            "text_input",
            "decoding",
            "drafter",
            "forbidden_drafter",
            "growth",
            "acceptance",
            "cache_salt",
            "stop_words",
            "bad_words",
            "guided_decoding_guide_type",
            "guided_decoding_guide",
            "key",
            "draft_key",
            "delta_text",
        ),
        "BYTES",
    ),
    **dict.fromkeys(
        (
            *("temperature", "top_p", "repetition_penalty", "presence_penalty"),
            *("frequency_penalty", "length_penalty", "len_penalty"),
        ),
        "FP32",
    ),
    "seed": "UINT64",
    "deadline_ns": "INT64",
}
"""Of inputs that are not INT32; written down anew, so that the server's table is tested by it."""
_NUMPY = {"BYTES": np.object_, "FP32": np.float32, "UINT64": np.uint64, "INT64": np.int64,
          "INT32": np.int32, "BOOL": np.bool_}  # fmt: skip


def tensor_of(name: str, value: Any) -> InferInput:
    """`value` as a tensor [1, n]; an array is sent as it is."""
    if isinstance(value, np.ndarray):
        array = value
        dtype = next(key for key, kind in _NUMPY.items() if np.dtype(kind) == array.dtype)
    else:
        row = value if isinstance(value, list) else [value]
        dtype = "BOOL" if isinstance(row[0], bool) else DTYPES.get(name, "INT32")
        row = [item.encode() if isinstance(item, str) else item for item in row]
        array = np.array([row], _NUMPY[dtype])
    tensor = InferInput(name, list(array.shape), dtype)
    tensor.set_data_from_numpy(array)
    return tensor
