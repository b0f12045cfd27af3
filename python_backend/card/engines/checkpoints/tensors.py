"""What a decoder is made of, whatever file it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import Matrix
from card.engines.interface import EngineError


@dataclass(frozen=True, slots=True)
class LinearTensors:
    """weight [outputs, inputs]; bias [outputs] float32, or None."""

    weight: Matrix
    bias: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One decoder layer; query, key and value are one linear layer, gate and up another."""

    input_norm: NDArray[np.float32]
    query_key_value: LinearTensors
    query_norm: NDArray[np.float32] | None
    key_norm: NDArray[np.float32] | None
    output: LinearTensors
    post_norm: NDArray[np.float32]
    gate_up: LinearTensors
    down: LinearTensors


class Checkpoint(Protocol):
    """The tensors of one model. Every method raises `EngineError` on a tensor that is missing or
    does not fit."""

    @property
    def values(self) -> int:
        """How many numbers the tensors hold."""

    @property
    def matrices_are(self) -> str:
        """What the matrices are stored in, as the file's format calls it; or ``mixed``."""

    @property
    def is_grouped(self) -> bool:
        """Whether matrices are groups of few bits, at least some of them."""

    def embedding(self) -> Matrix:
        """[vocabulary, hidden]"""

    def head(self) -> Matrix | None:
        """[vocabulary, hidden]; None if the embedding is the head too."""

    def final_norm(self) -> NDArray[np.float32]:
        """[hidden]"""

    def layers(self) -> Iterator[LayerTensors]:
        """Layer after layer, so that only one stands in memory unpacked."""


def unknown_tensor(path: Path, name: str, architecture: Architecture) -> EngineError:
    """A tensor that the decoder has and nobody uses changes what the model computes."""
    return EngineError(
        f"{path}: tensor {name!r} is not known in models of the family {architecture.family}, so "
        "the model cannot be run as it was made"
    )


def required_tensors(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor but biases, which a layer may lack, by GGUF's name for it."""
    query, key_value = a.heads * a.head_size, a.kv_heads * a.head_size
    norms = ("attn_q_norm", "attn_k_norm") if a.query_key_norm else ()
    in_layer = {
        "attn_norm": (a.hidden,),
        "attn_q": (query, a.hidden),
        "attn_k": (key_value, a.hidden),
        "attn_v": (key_value, a.hidden),
        "attn_output": (a.hidden, query),
        "ffn_norm": (a.hidden,),
        "ffn_gate": (a.intermediate, a.hidden),
        "ffn_up": (a.intermediate, a.hidden),
        "ffn_down": (a.hidden, a.intermediate),
        **dict.fromkeys(norms, (a.head_size,)),
    }
    head = {} if a.tied_embeddings else {"output": (a.vocabulary, a.hidden)}
    return {
        "token_embd": (a.vocabulary, a.hidden),
        "output_norm": (a.hidden,),
        **head,
        **{f"blk.{n}.{part}": shape for n in range(a.layers) for part, shape in in_layer.items()},
    }


class Stored(Protocol):
    """Where a tensor lies in its file, and what it is there."""

    @property
    def shape(self) -> tuple[int, ...]: ...


AnyStored = TypeVar("AnyStored", bound=Stored)


def stored_as(
    path: Path,
    tensors: Mapping[str, AnyStored],
    name: str,
    shape: tuple[int, ...],
    implied_by: str,
) -> AnyStored:
    """The tensor of this name. Raises `EngineError` if it is missing or has another shape than the
    architecture has.

    implied_by  what the architecture was read from
    """
    if name not in tensors:
        raise EngineError(f"{path}: tensor {name!r} is missing")
    stored = tensors[name]
    if stored.shape != shape:
        raise EngineError(
            f"{path}: {name} has shape {stored.shape}; by {implied_by} it must have {shape}"
        )
    return stored
