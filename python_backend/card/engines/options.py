"""Options of engines that run checkpoints themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from card.engines.architecture import Architecture
from card.engines.interface import (
    EngineError,
)

Dtype = Literal["auto", "bfloat16", "float16", "float32", "int8", "int4"]

MAX_PASS_ROWS = 256
"""Most rows that one session may have in one pass (a prefill chunk)."""
DRAFT_ROWS = 24
"""Rows of a draft's pass that grow trees, for all sessions together; more rows would delay the
candidates of every session."""

_EXAMINED_SESSIONS = 8
"""Most sessions of the examination at load."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one checkpoint.

    context        positions per session
    sessions       most sessions at once
    paths          most root-to-leaf paths of a session's rows; 0: a growing tree instead
    pending        most unconfirmed entries of a growing tree
    dtype          ``auto`` is bfloat16 on a CUDA device and where the processor computes in it,
                   else float32; ``int8`` and ``int4`` quantise matrices (OpenVINO)
    weight_group   inputs that share a scale in ``int8`` and ``int4``
    threads        threads of one pass; 0: the process's default
    threads_alone  threads of one pass while no other model computes; 0: the same as `threads`
    row_multiple   rows of a chain are padded to a multiple of this
    device         ``cpu``, ``cuda`` (the first) or ``cuda:N``
    graph_rows     numbers of rows of one session that get a decoder of their own at load; passes
                   of fewer rows are padded to them (OpenVINO)
    compressed     matrices of few bits, and in float32 also of sixteen, may stay as stored
                   (OpenVINO), if rows are independent then
    kept_tokens    most tokens of texts with kept KV
    smoothing      factors of compressed matrices from an earlier load (`SmoothedCheckpoint`);
                   empty: the load computes them
    taps           hidden states that every pass of a target returns (`Logits.states`), as indices
                   of `transformers`' ``hidden_states``: 0 is the embedding, i the output of layer
                   i - 1, and the number of layers the final norm; negative ones count from there
    """

    context: int
    sessions: int
    paths: int = 1
    pending: int = 0
    dtype: Dtype = "auto"
    weight_group: int = 32
    threads: int = 0
    threads_alone: int = 0
    row_multiple: int = 1
    device: str = "cpu"
    graph_rows: tuple[int, ...] = ()
    compressed: bool = False
    kept_tokens: int = 0
    smoothing: bytes = b""
    taps: tuple[int, ...] = ()

    @property
    def most_threads(self) -> int:
        """Most threads of a pass; 0: the process's default."""
        return max(self.threads, self.threads_alone) if self.threads else 0

    @property
    def examined_sessions(self) -> int:
        """Number of sessions during the examination; its results hold for any number."""
        return max(2, min(_EXAMINED_SESSIONS, self.sessions))

    @property
    def grows_trees(self) -> bool:
        """Whether the engine is a draft's, with sessions of growing trees."""
        return self.paths == 0


def taps_of(architecture: Architecture, options: EngineOptions) -> tuple[int, ...]:
    """The options' taps without negative ones. Raises `EngineError` for a tap of no layer."""
    last = architecture.layers
    if wrong := [tap for tap in options.taps if not -last - 1 <= tap <= last]:
        raise EngineError(
            f"draft.taps names the hidden states {wrong}; the target of {last} layers has 0 to "
            f"{last}, or -1 to {-last - 1} from the end"
        )
    return tuple(tap % (last + 1) for tap in options.taps)


def check_context(directory: Path, architecture: Architecture, options: EngineOptions) -> None:
    """Raises `EngineError` if the options ask for more positions than the model has."""
    if options.context > architecture.context:
        raise EngineError(
            f"{directory}: the model was built for {architecture.context} positions; "
            f"limits.context_tokens asks for {options.context}"
        )
