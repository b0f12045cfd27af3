"""The interface of a kind of head: a module, its loss and the tokens that it drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from training.errors import TrainingError
from training.heads.recipe import HeadRecipe
from training.heads.states import TappedTarget
from training.parallel.files import Texts


@dataclass(frozen=True)
class Setup:
    """The inputs of the training of a head.

    target  computes the states that the head reads
    texts   of the target
    recipe  the numbers, of the kind's own class
    folder  of the head; a head that is there goes on
    draft   the draft that a head begins with, for kinds that begin with one
    """

    target: TappedTarget
    texts: Texts
    recipe: Any
    folder: Path
    draft: Path | None = None

    def most_frequent(self, ids: int) -> NDArray[np.int64]:
        """The `ids` most frequent ids of the texts, ascending."""
        return np.sort(np.argsort(-self._counts(), kind="stable")[:ids])

    def unused_id(self) -> int:
        """An id that no text holds. Raises `TrainingError`."""
        unused = np.flatnonzero(self._counts() == 0)
        if not len(unused):
            raise TrainingError("the texts hold every id of the vocabulary: none is left for masks")
        return int(unused[-1])

    def _counts(self) -> NDArray[np.int64]:
        vocabulary = self.target.architecture.vocabulary
        return np.bincount(np.asarray(self.texts).ravel(), minlength=vocabulary)


class Kind(ABC):
    """One kind of head in training. Its constructor takes a `Setup` and may raise
    `TrainingError`."""

    recipe: ClassVar[type[HeadRecipe]] = HeadRecipe
    head: nn.Module

    @abstractmethod
    def __init__(self, setup: Setup) -> None: ...

    @classmethod
    @abstractmethod
    def taps(cls, layers: int) -> tuple[int, ...]:
        """The hidden states that the head reads of a target of so many layers."""

    @abstractmethod
    def loss(self, text: Tensor, states: Tensor, random: np.random.Generator) -> Tensor:
        """The loss on a text.

        text    [tokens] int64
        states  [tokens, numbers] float32
        """

    @abstractmethod
    def right(self, text: Tensor, states: Tensor, lags: int) -> Tensor:
        """Whether each token that the head drafts greedily is the text's, bool
        [lags, chains, steps]. At lag n the n newest tokens before a chain have no states."""

    @abstractmethod
    def write(self) -> None:
        """Write the head to the setup's folder. A run that is cut off leaves the former one."""

    def weights(self, rate: float) -> list[dict[str, Any]]:
        """The optimizer's groups of weights; `rate` is the recipe's."""
        return [{"params": [*self.head.parameters()], "lr": rate}]
