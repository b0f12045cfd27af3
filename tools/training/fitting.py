"""The one training loop: it lowers a loss that is a function of the step, within a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training.checkpoint import RunState, restore_run, save_run
from training.compute import Compute
from training.recipe import Training

_BETAS = (0.9, 0.95)
# Reading a loss waits for the GPU: there, several are read together.
_LOSSES_READ_AT_ONCE = {"cuda": 16}


class FittingError(RuntimeError):
    """Training cannot go on; the message says why and what to change."""


@dataclass(frozen=True)
class Budget:
    """When a run ends: after a number of steps, or after minutes, whichever comes first."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ValueError("a budget needs steps, minutes, or both")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps is {self.steps}: it must be at least 1")
        if self.minutes is not None and not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ValueError(f"minutes is {self.minutes}: it must be above 0")

    def spent(self, state: RunState) -> float:
        """The share of the budget that is used up; at least 1 when the run is over."""
        by_steps = 0.0 if self.steps is None else state.step / self.steps
        by_minutes = 0.0 if self.minutes is None else state.seconds / (60 * self.minutes)
        return max(by_steps, by_minutes)


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows: steps done, share of the budget, the latest loss."""

    step: int
    spent: float
    loss: float


def learning_rate(training: Training, step: int, spent: float) -> float:
    """Linear warm-up, the peak until ``hold`` of the budget is spent, then linear to zero."""
    warm = min(1.0, (step + 1) / training.warmup_steps) if training.warmup_steps else 1.0
    left = min(1.0, max(0.0, 1.0 - spent) / (1.0 - training.hold))
    return training.peak_rate * warm * left


def fit(
    model: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    training: Training,
    budget: Budget,
    compute: Compute,
    checkpoint: Path,
    on_progress: Callable[[Progress], None] = lambda _: None,
    save_every_s: float = 60.0,
) -> list[float]:
    """Train ``model`` in place from its checkpoint, if there is one, to the budget's end.

    ``loss_of_step`` must depend on the step and the weights alone: then a resumed run repeats
    exactly what an uninterrupted one does. Returns the loss of every step since the first.

    Raises:
        FittingError: the loss is no longer a number.
        CheckpointError: the checkpoint belongs to another architecture.
    """
    optimizer = _optimizer(model, training)
    state = restore_run(checkpoint, model, optimizer)
    read_at_once = _LOSSES_READ_AT_ONCE.get(compute.device.type, 1)
    unread: list[Tensor] = []
    started = time.perf_counter() - state.seconds
    saved_at = state.seconds

    def read_losses() -> None:
        state.losses.extend(torch.stack(unread).tolist())
        unread.clear()
        if not math.isfinite(state.losses[-1]):
            raise FittingError(
                f"the loss is {state.losses[-1]} at step {state.step}: "
                f"lower peak_rate ({training.peak_rate}) and start afresh with --overwrite"
            )
        on_progress(Progress(state.step, min(1.0, budget.spent(state)), state.losses[-1]))

    model.train()
    while (spent := budget.spent(state)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, state.step, spent)
        with compute.autocast():
            loss = loss_of_step(state.step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        unread.append(loss.detach())
        state.step += 1
        state.seconds = time.perf_counter() - started
        if len(unread) >= read_at_once:
            read_losses()
        if not unread and state.seconds - saved_at >= save_every_s:
            save_run(checkpoint, model, optimizer, state)
            saved_at = state.seconds
    if unread:
        read_losses()
    save_run(checkpoint, model, optimizer, state)
    model.eval()
    return state.losses


def _optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norms alone."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.peak_rate, betas=_BETAS, fused=True)
