"""What tests ask of the processor that they run on."""

from __future__ import annotations

import pytest

from card.engines.processor import computes_in_bfloat16


def skip_unless_computed_in(dtype: str) -> None:
    """Skip where products of this type are no instruction: rows may influence each other there,
    and a target in it is then refused at load (tested on every processor)."""
    if dtype in ("bfloat16", "int8") and not computes_in_bfloat16():
        pytest.skip(f"this processor does not compute in bfloat16, as {dtype} does")
