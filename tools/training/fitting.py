"""Training for a number of steps: it lowers a loss that is a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn

from training.compute import Compute
from training.errors import TrainingError
from training.progress import Show, silent
from training.recipe import Frozen

_BETAS = (0.9, 0.95)
# Reading a loss waits for the GPU: there, several are read together.
_LOSSES_READ_AT_ONCE = {"cuda": 16}


class Training(Frozen):
    """One run of the optimiser: AdamW, warm-up, a held peak, then linear to zero.

    ``hold`` is the share of the steps at the peak before the rate begins to fall.
    """

    steps: int = Field(default=700, ge=1)
    batch: int = Field(default=8, ge=1, description="texts in a step")
    peak_rate: float = Field(default=1.5e-3, gt=0)
    warmup_steps: int = Field(default=100, ge=0)
    hold: float = Field(default=0.3, ge=0, lt=1)
    weight_decay: float = Field(default=0.1, ge=0)
    clip: float = Field(default=1.0, gt=0, description="largest gradient norm")


def learning_rate(training: Training, step: int) -> float:
    """Linear warm-up, the peak for ``hold`` of the steps, then linear to zero."""
    warm = min(1.0, (step + 1) / training.warmup_steps) if training.warmup_steps else 1.0
    left = min(1.0, (1.0 - step / training.steps) / (1.0 - training.hold))
    return training.peak_rate * warm * left


def fit(
    model: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    training: Training,
    compute: Compute,
    show: Show = silent,
) -> list[float]:
    """Train ``model`` in place. Returns the loss of every step.

    Raises:
        TrainingError: the loss is no longer a number.
    """
    optimizer = _optimizer(model, training)
    read_at_once = _LOSSES_READ_AT_ONCE.get(compute.device.type, 1)
    losses: list[float] = []
    unread: list[Tensor] = []

    def read_losses() -> None:
        losses.extend(torch.stack(unread).tolist())
        unread.clear()
        if not math.isfinite(losses[-1]):
            raise TrainingError(
                f"the loss is {losses[-1]} at step {len(losses)}: "
                f"lower peak_rate ({training.peak_rate}) and start afresh in another folder"
            )
        show(len(losses) / training.steps, f"step {len(losses)}, loss {losses[-1]:.3f}")

    model.train()
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        with compute.autocast():
            loss = loss_of_step(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        unread.append(loss.detach())
        if len(unread) >= read_at_once:
            read_losses()
    if unread:
        read_losses()
    model.eval()
    return losses


def _optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norms alone."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.peak_rate, betas=_BETAS, fused=True)
