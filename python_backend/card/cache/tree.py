"""Candidate trees: what a draft published, copied and checked before anybody believes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROOT = -1
"""Parent of the nodes that follow the last token at the tree's root."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A snapshot of a candidate tree; parents stand before their children.

    root_length  committed tokens (prompt and output) that the root stands for
    token        [nodes] int64
    parent       [nodes] int64, index of a node or `ROOT`
    score        [nodes] float64, log-probability of the path from the root under the draft
    """

    root_length: int
    token: NDArray[np.int64]
    parent: NDArray[np.int64]
    score: NDArray[np.float64]

    def is_sound(self, vocabulary: int) -> bool:
        """Whether every node can be trusted to be a node: whoever wrote it, reading it is safe.

        Tokens lie in the vocabulary, parents stand before children (so there is no cycle) and
        scores are numbers. Whether the tokens are *likely* matters to speed alone.
        """
        count = len(self.token)
        if count == 0:
            return True
        return bool(
            self.token.min() >= 0
            and self.token.max() < vocabulary
            and self.parent.min() >= ROOT
            and (self.parent < np.arange(count)).all()
            and not np.isnan(self.score).any()
            and self.score.max() <= 1e-6
        )
