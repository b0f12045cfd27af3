"""How an engine that runs checkpoints itself is to run one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["auto", "bfloat16", "float16", "float32", "int8", "int4"]

MAX_PASS_ROWS = 256
"""Most rows that one session may have in one pass (a prefill chunk)."""
DRAFT_ROWS = 24
"""About so many rows of a draft's pass grow trees, of all sessions together; more would make a
candidate late for everybody."""

_EXAMINED_SESSIONS = 8
"""An engine is examined at load with so many sessions at most."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to run a checkpoint.

    context        positions per session
    sessions       most sessions at once
    paths          most root-to-leaf paths of a session's rows; 0: a growing tree instead
    pending        most unconfirmed entries of a growing tree
    dtype          ``auto`` is bfloat16 on a CUDA device and where the processor computes in it,
                   else float32; ``int8`` and ``int4`` quantise matrices (OpenVINO)
    weight_group   inputs that share a scale in ``int8`` and ``int4``
    threads        threads of one pass; 0: as the process has them
    threads_alone  threads of one pass while no other model computes; 0: the same
    row_multiple   rows of a chain are padded to a multiple of this
    device         ``cpu``, ``cuda`` (the first) or ``cuda:N``
    graph_rows     passes of one session with so many rows, or fewer padded to them, are prepared
                   for once at load (OpenVINO)
    compressed     matrices of few bits, and in float32 of sixteen, may stay as they are stored
                   (OpenVINO), if then rows are independent
    kept_tokens    of texts whose KV is kept for those that begin alike, at most
    smoothing      of compressed matrices, as a load before found it (`SmoothedCheckpoint`); empty:
                   it is to be found
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

    @property
    def most_threads(self) -> int:
        """Threads that a pass ever has; 0: as the process has them."""
        return max(self.threads, self.threads_alone) if self.threads else 0

    @property
    def examined_sessions(self) -> int:
        """How many sessions it has while it is examined: what is found out with these holds for as
        many as it serves."""
        return max(2, min(_EXAMINED_SESSIONS, self.sessions))

    @property
    def grows_trees(self) -> bool:
        """Whether the engine is a draft's: its sessions hold growing trees."""
        return self.paths == 0
