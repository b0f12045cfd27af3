"""One way to try inputs: hypothesis draws them from a seed and shrinks what fails; all count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, given
from hypothesis.strategies import SearchStrategy

Input = TypeVar("Input")


def try_inputs(
    inputs: SearchStrategy[Input], check: Callable[[Input], Any], *, seed: int, examples: int
) -> int:
    """Hand `examples` inputs to `check`, which raises on a failure; how many were tried."""
    tried = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(inputs)
    def one(value: Input) -> None:
        nonlocal tried
        tried += 1
        check(value)

    one()
    return tried
