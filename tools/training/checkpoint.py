"""Saves and restores a training run as one safetensors file, without pickle.

Weights, both AdamW moments and step counts are tensors; the rest of the run's state is JSON in
the file's header. The file is replaced at once, so an interruption leaves the old one whole.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_WEIGHT = "weight:"


class CheckpointError(RuntimeError):
    """A checkpoint that does not belong to this run."""


@dataclass
class RunState:
    """How far a run has come: steps done, seconds spent, the loss of every step."""

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


def save_run(path: Path, model: nn.Module, optimizer: Optimizer, state: RunState) -> None:
    """Write weights, optimiser state and ``state`` to ``path``, replacing it atomically."""
    tensors: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        tensors[_WEIGHT + name] = weight.detach()
        for moment in _MOMENTS:
            if weight in optimizer.state:
                tensors[f"{moment}:{name}"] = optimizer.state[weight][moment]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
        unfinished,
        metadata={"run": json.dumps(asdict(state))},
    )
    os.replace(unfinished, path)


def restore_run(path: Path, model: nn.Module, optimizer: Optimizer) -> RunState:
    """Put a saved run back into ``model`` and ``optimizer``; a fresh state if there is none.

    Raises:
        CheckpointError: the file holds the run of another architecture.
    """
    if not path.is_file():
        return RunState()
    restore_weights(path, model)
    with safe_open(path, framework="pt") as file:
        for name, weight in model.named_parameters():
            optimizer.state[weight] = {
                moment: file.get_tensor(f"{moment}:{name}").to(weight.device) for moment in _MOMENTS
            }
        return RunState(**json.loads(file.metadata()["run"]))


def steps_done(path: Path) -> int:
    """How many steps a saved run has come; 0 if there is none."""
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as file:
        return int(json.loads(file.metadata()["run"])["step"])


def restore_weights(path: Path, model: nn.Module) -> None:
    """Put the weights of a saved run into ``model``.

    Raises:
        CheckpointError: names or shapes are those of another architecture.
    """
    with safe_open(path, framework="pt") as file:
        saved = {
            name.removeprefix(_WEIGHT): file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118  (safe_open is not a mapping)
            if name.startswith(_WEIGHT)
        }
    own = dict(model.named_parameters())
    if {n: tuple(t.shape) for n, t in saved.items()} != {n: tuple(t.shape) for n, t in own.items()}:
        raise CheckpointError(
            f"{path} was written for another architecture: choose another --output, "
            "or start afresh with --overwrite"
        )
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(saved[name])
