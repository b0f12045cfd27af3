"""The device that a model is to run on: whether it is there, whether the kernels run on it, and
whether the model fits."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from card.engines.architecture import Architecture
from card.engines.interface import EngineError
from card.engines.options import MAX_PASS_ROWS, Dtype, EngineOptions
from card.engines.sessions import EXTENT_MULTIPLE, SHORT, kept_lanes, lane_places, most_pending

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What the kernels compute in."""

_CAPABILITY = (8, 0)
"""Compute capability from which a product reads shared memory while it is being filled, and from
which bfloat16 is multiplied in hardware (Ampere)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What this process sees.

    build         the version of torch
    cuda          the CUDA version torch was built with; None: built without
    capabilities  compute capability of each visible CUDA device
    has_triton    whether Triton, the language of the kernels, is installed
    """

    build: str
    cuda: str | None
    capabilities: tuple[tuple[int, int], ...]
    has_triton: bool = True

    @classmethod
    def seen(cls) -> Devices:
        count = torch.cuda.device_count() if torch.version.cuda else 0
        return cls(
            str(torch.__version__),
            torch.version.cuda,
            tuple(torch.cuda.get_device_capability(index) for index in range(count)),
            importlib.util.find_spec("triton") is not None,
        )


def choose_device(wanted: str, devices: Devices) -> torch.device:
    """``cpu``, ``cuda`` (the first) or ``cuda:N``. Raises `EngineError` where it is not there or
    the kernels do not run on it."""
    device = torch.device(wanted)
    if device.type == "cpu":
        return device
    if devices.cuda is None:
        raise EngineError(
            f"device: {wanted} is set and this torch ({devices.build}) was built without CUDA; "
            "install a CUDA build of torch, or set device: cpu"
        )
    count = len(devices.capabilities)
    if not count:
        raise EngineError(
            f"device: {wanted} is set and torch {devices.build} sees no CUDA device; check the "
            "driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or set device: cpu"
        )
    index = device.index or 0
    if index >= count:
        names = ", ".join(f"cuda:{number}" for number in range(count))
        raise EngineError(f"device: {wanted} is not there; allowed: cpu, {names}")
    if devices.capabilities[index] < _CAPABILITY:
        found = ".".join(map(str, devices.capabilities[index]))
        raise EngineError(
            f"device: {wanted} is set and has compute capability {found}; the kernels need 8.0 or "
            "later (Ampere): take such a device, or set device: cpu"
        )
    if not devices.has_triton:
        raise EngineError(
            f"device: {wanted} is set and the package triton, the language of the kernels, is not "
            "installed; install it (pip install triton), or set device: cpu"
        )
    return torch.device("cuda", index)


def choose_dtype(wanted: Dtype, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16. Raises `EngineError` for what the kernels do not compute in."""
    if wanted not in _DTYPES:
        raise EngineError(
            f"dtype: {wanted} does not run on device: {device}; allowed: {', '.join(_DTYPES)}, or "
            "set device: cpu"
        )
    return _DTYPES[wanted]


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
