"""The tensors of a decoder, for every file format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.checkpoints.matrices import Matrix


@dataclass(frozen=True, slots=True)
class LinearTensors:
    """weight [outputs, inputs]; bias [outputs] float32, or None."""

    weight: Matrix
    bias: NDArray[np.float32] | None = None


Norm = NDArray[np.float32]
"""Weights [size] of a norm; of a LayerNorm [2, size], with its bias."""


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One decoder layer; query, key and value are one linear layer, gate and up another (`up` alone
    where there is no gate).

    input_norm, post_norm      of the inputs of attention and of the network
    query_norm, key_norm       of each head, or of all heads of a row
    attention_norm, down_norm  of the outputs of attention and of the network
    """

    input_norm: Norm | None
    query_key_value: LinearTensors
    query_norm: NDArray[np.float32] | None
    key_norm: NDArray[np.float32] | None
    output: LinearTensors
    post_norm: Norm | None
    gate_up: LinearTensors
    down: LinearTensors
    attention_norm: Norm | None = None
    down_norm: Norm | None = None


class Checkpoint(Protocol):
    """The tensors of one model. Every method raises `EngineError` on a tensor that is missing or
    does not fit."""

    @property
    def values(self) -> int:
        """Total number of values in the tensors."""

    @property
    def matrices_are(self) -> str:
        """Storage type of the matrices, in the words of the file format; or ``mixed``."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Storage type of each matrix, by its name in the files."""

    @property
    def is_grouped(self) -> bool:
        """Whether at least some matrices are groups of few bits."""

    def embedding(self) -> Matrix:
        """[vocabulary, hidden]"""

    def head(self) -> Matrix | None:
        """[vocabulary, hidden]; None if the embedding is also the head."""

    def final_norm(self) -> Norm:
        """[hidden], or [2, hidden]"""

    def layers(self) -> Iterator[LayerTensors]:
        """The layers one by one, so that only one is unpacked in memory."""


class DerivedCheckpoint:
    """Implements `Checkpoint` with another one's tensors; subclasses change some of them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def values(self) -> int:
        return self._checkpoint.values

    @property
    def matrices_are(self) -> str:
        return self._checkpoint.matrices_are

    @property
    def kinds(self) -> Mapping[str, str]:
        return self._checkpoint.kinds

    @property
    def is_grouped(self) -> bool:
        return self._checkpoint.is_grouped

    def embedding(self) -> Matrix:
        return self._checkpoint.embedding()

    def head(self) -> Matrix | None:
        return self._checkpoint.head()

    def final_norm(self) -> Norm:
        return self._checkpoint.final_norm()

    def layers(self) -> Iterator[LayerTensors]:
        return self._checkpoint.layers()
