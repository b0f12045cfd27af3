"""The tensors of a model's files, by GGUF's names for them, checked against the architecture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import Matrix, stacked
from card.engines.checkpoints.tensors import LayerTensors, LinearTensors, Norm
from card.engines.interface import EngineError

Order = NDArray[np.int64] | slice
_AS_STORED = slice(None)


class Stored(Protocol):
    """A tensor in its file."""

    @property
    def kind(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


AnyStored = TypeVar("AnyStored", bound=Stored)


class StoredCheckpoint(Generic[AnyStored]):
    """Implements `tensors.Checkpoint`; a subclass reads names and numbers of one file format.

    implied_by  the file that the architecture was read from
    depth_is    the text in which it names the number of layers, for errors
    norms_may_lack_one  whether the format keeps the weights of norms less one, as some families do
    """

    implied_by: str
    depth_is: str
    norms_may_lack_one = False

    def __init__(
        self, path: Path, architecture: Architecture, stored: Mapping[str, AnyStored]
    ) -> None:
        self._path = path
        self._architecture = architecture
        self._stored = stored
        self._check_depth()
        self._check_known()
        for name, shape in _shapes(architecture).items():
            self._found(f"{name}.weight", shape)  # a missing tensor is refused before any is read

    # --- the file format ----------------------------------------------------------------------

    def _own(self, name: str) -> str:
        """The files' name for a tensor."""
        return name

    def _layer_of(self, own: str) -> int | None:
        """The layer of a tensor, by its name in the files; None: the tensor is in no layer."""
        raise NotImplementedError

    def _is_idle(self, own: str) -> bool:
        """Whether the engine needs no tensor of this name in the files."""
        raise NotImplementedError

    def _numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor, unpacked. All its numbers are finite."""
        raise NotImplementedError

    def _matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """A tensor in its stored form. All its numbers are finite."""
        raise NotImplementedError

    def _bias(self, name: str, size: int) -> NDArray[np.float32]:
        """Bias of one of the linear layers that share their input, if another one has a bias."""
        return self._numbers(name, (size,))

    def _order(self, heads: int) -> Order:
        """Indices in the file of the rows of query or key, in the decoder's order."""
        return _AS_STORED

    # --- the checkpoint -----------------------------------------------------------------------

    @property
    def values(self) -> int:
        return sum(math.prod(stored.shape) for stored in self._stored.values())

    @property
    def matrices_are(self) -> str:
        found = set(self.kinds.values())
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def kinds(self) -> Mapping[str, str]:
        return {own: stored.kind for own, stored in self._stored.items() if len(stored.shape) > 1}

    @property
    def is_grouped(self) -> bool:
        return False

    def embedding(self) -> Matrix:
        a = self._architecture
        return self._matrix("token_embd.weight", (a.vocabulary, a.hidden))

    def head(self) -> Matrix | None:
        a = self._architecture
        if a.tied_embeddings:
            return None
        return self._matrix("output.weight", (a.vocabulary, a.hidden))

    def final_norm(self) -> Norm:
        return self._norm("output_norm", self._architecture.hidden)

    def layers(self) -> Iterator[LayerTensors]:
        return (self._layer(f"blk.{index}") for index in range(self._architecture.layers))

    def _layer(self, layer: str) -> LayerTensors:
        a, family = self._architecture, self._architecture.description
        joint = {"attn_q": self._order(a.heads), "attn_k": self._order(a.kv_heads)}
        joint["attn_v"] = _AS_STORED
        if family.fused:
            joint = {"attn_qkv": _AS_STORED}
        network = ("ffn_gate", "ffn_up") if family.gated and not family.fused else ("ffn_up",)

        def norm(part: str) -> Norm | None:
            sizes = _norms(a)
            return self._norm(f"{layer}.{part}", sizes[part]) if part in sizes else None

        return LayerTensors(
            input_norm=norm("attn_norm"),
            query_key_value=self._linear(layer, **joint),
            query_norm=norm("attn_q_norm"),
            key_norm=norm("attn_k_norm"),
            output=self._linear(layer, attn_output=_AS_STORED),
            attention_norm=norm("post_attention_norm"),
            post_norm=norm("ffn_norm"),
            gate_up=self._linear(layer, **dict.fromkeys(network, _AS_STORED)),
            down=self._linear(layer, ffn_down=_AS_STORED),
            down_norm=norm("post_ffw_norm"),
        )

    def _norm(self, name: str, size: int) -> Norm:
        weight = self._numbers(f"{name}.weight", (size,))
        if self.norms_may_lack_one and self._architecture.description.norms_less_one:
            weight = weight + np.float32(1)
        if self._architecture.description.norm == "rms":
            return weight
        return np.stack([weight, self._numbers(f"{name}.bias", (size,))])

    def _linear(self, layer: str, **parts: Order) -> LinearTensors:
        """Linear layers that share their input, stacked into one, each with its rows in order."""
        shapes = {part: _in_layer(self._architecture)[part] for part in parts}
        weight = stacked(
            [
                self._matrix(f"{layer}.{part}.weight", shapes[part]).rows(order)
                for part, order in parts.items()
            ]
        )
        if not any(self._own(f"{layer}.{part}.bias") in self._stored for part in parts):
            return LinearTensors(weight)
        biases = [
            self._bias(f"{layer}.{part}.bias", shapes[part][0])[order]
            for part, order in parts.items()
        ]
        return LinearTensors(weight, np.concatenate(biases))

    # --- checks -------------------------------------------------------------------------------

    def _check_depth(self) -> None:
        """Check the number of layers, before making a name for every tensor of every layer."""
        if self._architecture.layers > len(self._stored):
            raise EngineError(
                f"{self._path}: {self.depth_is} {self._architecture.layers}, and the weights have "
                f"{len(self._stored)} tensors; the two do not belong together"
            )

    def _check_known(self) -> None:
        """Refuse an unknown tensor, because it changes what the model computes; and a tensor of an
        additional layer, because the configuration then does not belong to the weights."""
        a = self._architecture
        parts = [*_shapes(a), "output"]
        known = {self._own(f"{part}.weight") for part in parts}
        biased = {
            *_in_layer(a),
            *(() if a.description.norm == "rms" else (*_norms(a), "output_norm")),
        }
        known |= {self._own(f"{part}.bias") for part in parts if part.rpartition(".")[2] in biased}
        for own in self._stored:
            layer = self._layer_of(own)
            if layer is not None and layer >= a.layers:
                raise EngineError(
                    f"{self._path}: the weights have a layer {layer} (counted from 0), but "
                    f"{self.depth_is} {a.layers}; the two do not belong together"
                )
            if own not in known and not self._is_idle(own):
                raise EngineError(
                    f"{self._path}: tensor {own!r} is not known in models of the family "
                    f"{a.family}, so the model cannot be run as it was made"
                )

    def _found(self, name: str, shape: tuple[int, ...]) -> AnyStored:
        """The tensor. Raises `EngineError` if it is missing or its shape does not fit the
        architecture."""
        own = self._own(name)
        stored = self._stored.get(own)
        if stored is None:
            raise EngineError(f"{self._path}: tensor {own!r} is missing")
        if stored.shape != shape:
            raise EngineError(
                f"{self._path}: {own} has shape {stored.shape}; by {self.implied_by} it must have "
                f"{shape}"
            )
        return stored

    def _check_finite(self, name: str, finite: bool) -> None:
        if not finite:
            raise EngineError(f"{self._path}: {self._own(name)} holds values that are not finite")


def _shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor but biases, which a layer may lack."""
    in_layer = {**{name: (size,) for name, size in _norms(a).items()}, **_in_layer(a)}
    head = {} if a.tied_embeddings else {"output": (a.vocabulary, a.hidden)}
    return {
        "token_embd": (a.vocabulary, a.hidden),
        "output_norm": (a.hidden,),
        **head,
        **{f"blk.{n}.{part}": shape for n in range(a.layers) for part, shape in in_layer.items()},
    }


def _norms(a: Architecture) -> dict[str, int]:
    """The sizes of a layer's norms."""
    family = a.description
    of_heads = (a.heads, a.kv_heads) if family.query_key_norm == "whole" else (1, 1)
    names = ("attn_q_norm", "attn_k_norm") if a.query_key_norm else ()
    before = ("attn_norm", "ffn_norm") if family.norms_before else ()
    after = ("post_attention_norm", "post_ffw_norm") if family.norms_after else ()
    return {
        **dict.fromkeys((*before, *after), a.hidden),
        **{name: count * a.head_size for name, count in zip(names, of_heads, strict=False)},
    }


def _in_layer(a: Architecture) -> dict[str, tuple[int, int]]:
    """The shapes of a layer's linear layers, which may have biases."""
    query, key_value, family = a.heads * a.head_size, a.kv_heads * a.head_size, a.description
    shapes = {"attn_output": (a.hidden, query), "ffn_down": (a.hidden, a.intermediate)}
    if family.fused:
        shapes["attn_qkv"] = query + 2 * key_value, a.hidden
        shapes["ffn_up"] = 2 * a.intermediate, a.hidden
        return shapes
    shapes["attn_q"] = query, a.hidden
    shapes["attn_k"] = shapes["attn_v"] = key_value, a.hidden
    shapes["ffn_up"] = a.intermediate, a.hidden
    return shapes | ({"ffn_gate": shapes["ffn_up"]} if family.gated else {})
