"""What a text must be besides likely: a mask over the vocabulary at each position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Of one session. Target and draft each hold one and tell it what is committed."""

    def advance(self, tokens: Sequence[int]) -> None:
        """The text grew by these tokens."""

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary] ids that may follow the text."""

    def allowed_behind(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """[vocabulary] ids that may follow the text and `path`."""
