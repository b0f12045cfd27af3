"""What a model needs of a device's memory, and what would fit if it does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from card.engines.architecture import Architecture
from card.engines.interface import EngineError
from card.engines.layout import EXTENT_MULTIPLE, SHORT
from card.engines.options import MAX_PASS_ROWS, EngineOptions
from card.engines.sessions import kept_lanes, lane_places, most_pending

_GIB = 1 << 30
_LIBRARIES = 512 << 20
"""The modules of the driver and of Triton, and captured graphs."""

_PARTIAL_SUMS = 16
"""Sums in float32 that kernels leave for each number of what attention gives."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one model on its device.

    kv_position  of one position of one session
    spare        positions of a session behind its context
    kept         of texts that are kept
    """

    weights: int
    workspace: int
    kv_position: int
    spare: int
    kept: int = 0

    def kv(self, sessions: int, context: int) -> int:
        return sessions * self.kv_position * (context + self.spare)

    def total(self, sessions: int, context: int) -> int:
        return self.weights + self.workspace + self.kept + self.kv(sessions, context)


def need_of(architecture: Architecture, options: EngineOptions, element_bytes: int) -> Need:
    """An upper estimate for what `options` ask; nothing has to be loaded for it."""
    a = architecture
    attention = a.head_size * (2 * a.heads + 2 * a.kv_heads)
    layer = a.hidden * (attention + 3 * a.intermediate)
    embeddings = a.vocabulary * a.hidden * (1 if a.tied_embeddings else 2)
    spare = most_pending(options) + 2 * EXTENT_MULTIPLE
    # The widest pass: a few rows of every session, or one long chunk.
    rows = max(MAX_PASS_ROWS, options.sessions * SHORT)
    states = rows * (4 * a.hidden + 4 * a.intermediate + a.heads * a.head_size)
    logits = rows * a.vocabulary * (4 + (8 if options.grows_trees else 0))
    partial = rows * 4 * max(a.vocabulary, _PARTIAL_SUMS * a.heads * a.head_size)
    entry = 2 * a.layers * a.kv_heads * a.head_size * element_bytes
    kept_places = kept_lanes(options) * (lane_places(options) + EXTENT_MULTIPLE)
    return Need(
        weights=(a.layers * layer + embeddings) * element_bytes,
        workspace=2 * states * element_bytes + logits + partial + _LIBRARIES,
        kv_position=entry,
        spare=spare,
        kept=kept_places * entry,
    )


def check_fits(directory: Path, device: str, need: Need, options: EngineOptions, free: int) -> None:
    """Raises `EngineError` saying what would fit into `free` bytes."""
    total = need.total(options.sessions, options.context)
    if total <= free:
        return
    left = free - need.weights - need.workspace - need.kept
    raise EngineError(
        f"{directory}: needs {_gib(total)} on {device}, which has {_gib(free)} free "
        f"(weights {_gib(need.weights)}, {options.sessions} slots of {options.context} positions "
        f"{_gib(need.kv(options.sessions, options.context))}, kept texts {_gib(need.kept)} "
        f"(cache.kept_tokens), workspace {_gib(need.workspace)}); " + _advice(need, options, left)
    )


def _advice(need: Need, options: EngineOptions, left: int) -> str:
    sessions = max(0, left) // need.kv(1, options.context)
    context = max(0, left) // (options.sessions * need.kv_position) - need.spare
    fitting = []
    if sessions > 0:
        fitting.append(f"{sessions} slot{'s' * (sessions > 1)} of that context (cache.slots)")
    if context >= EXTENT_MULTIPLE:
        fitting.append(
            f"{options.sessions} slots of {context // EXTENT_MULTIPLE * EXTENT_MULTIPLE} positions "
            "(limits.context_tokens)"
        )
    if fitting:
        return f"what would fit: {', or '.join(fitting)}"
    return "not even one slot would fit: free the device, take another one, or a smaller model"


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
