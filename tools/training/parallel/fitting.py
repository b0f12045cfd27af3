"""The training loop: it runs for some minutes, saves its state and resumes from it."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from training.compute import Compute
from training.errors import TrainingError
from training.parallel.draft import ParallelDraft
from training.parallel.evaluation import Accepted, evaluate
from training.parallel.files import Texts
from training.parallel.layout import Batch
from training.parallel.objective import losses_of
from training.parallel.recipe import ParallelRecipe
from training.progress import Show, silent

_BETAS = (0.9, 0.95)
_SAVE_EVERY_S, _EVALUATE_EVERY_S = 60.0, 300.0


@dataclass
class Progress:
    """How far a tuning is: steps, seconds of training, rows (texts' and masks')."""

    step: int = 0
    seconds: float = 0.0
    rows: int = 0
    losses: list[tuple[float, float]] = field(default_factory=list)


class _Part(NamedTuple):
    """Losses, rows and gradients of a part of a step."""

    masks: float
    held: float
    rows: int
    gradients: tuple[Tensor, ...]


class Tuning:
    """One tuning in a folder: `checkpoint.safetensors` holds its state, `curve.jsonl` losses and
    accepted tokens."""

    def __init__(
        self,
        draft: ParallelDraft,
        teacher: ParallelDraft,
        texts: Texts,
        recipe: ParallelRecipe,
        compute: Compute,
        folder: Path,
        workers: int = 1,
    ) -> None:
        """`teacher` is the draft as it was before any tuning. `workers` threads share the windows
        of a step; on a processor that other programs use this is faster than threads that share
        each product, because they meet once a step."""
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        self.draft, self.recipe, self.compute = draft, recipe, compute
        self._teacher = teacher.requires_grad_(False)
        self._train, self._held_out = texts[: -recipe.held_out], texts[-recipe.held_out :]
        self._checkpoint, self._curve = folder / "checkpoint.safetensors", folder / "curve.jsonl"
        self._weights = [weight for weight in draft.parameters() if weight.requires_grad]
        self._optimizer = self._adamw()
        self.progress = Progress()
        folder.mkdir(parents=True, exist_ok=True)
        if self._checkpoint.is_file():
            self._resume()

    def run(self, seconds: float, show: Show = silent) -> None:
        """Train until ``seconds`` of training are done in all; saves and evaluates on the way."""
        progress = self.progress
        saved = evaluated = last = time.monotonic()
        while progress.seconds < seconds:
            self.step(progress.seconds / seconds)
            now = time.monotonic()
            progress.seconds += now - last
            last = now
            share = min(1.0, progress.seconds / seconds)
            masks, held = np.mean(progress.losses[-50:], axis=0)
            show(
                share,
                f"step {progress.step}, loss {masks:.3f}, held {held:.3f}, "
                f"{progress.rows / progress.seconds:.0f} rows/s",
            )
            if now - saved >= _SAVE_EVERY_S:
                self.save()
                saved = now
            if now - evaluated >= _EVALUATE_EVERY_S:
                self.evaluate()
                evaluated = last = time.monotonic()
                self.draft.train()
        self.save()

    def evaluate(self) -> Accepted:
        """Count accepted tokens on the held-out texts, and add a line to the curve."""
        recipe, progress = self.recipe, self.progress
        texts = np.array(self._held_out[:, : recipe.evaluation_window], np.int64)
        with self.compute.autocast():
            found = evaluate(self.draft, texts, recipe)
        masks, held = np.mean(progress.losses[-200:] or [(math.nan, math.nan)], axis=0)
        line = {
            "step": progress.step,
            "minutes": round(progress.seconds / 60, 2),
            "rows": progress.rows,
            "masks_loss": round(float(masks), 4),
            "held_loss": round(float(held), 4),
            **found.as_dict(),
        }
        with self._curve.open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(line) + "\n")
        return found

    def evaluate_teacher(self) -> Accepted:
        """Accepted tokens of the draft before any tuning; only `step_by_step` means something."""
        texts = np.array(self._held_out[:, : self.recipe.evaluation_window], np.int64)
        with self.compute.autocast():
            return evaluate(self._teacher, texts, self.recipe)

    def save(self) -> None:
        """Write the state; a run that is cut off meanwhile leaves the former one."""
        tensors = {f"draft.{name}": weight.detach() for name, weight in self._named()}
        for number, state in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
        about = {
            "recipe": self.recipe.model_dump_json(),
            "progress": json.dumps(asdict(self.progress)),
        }
        temporary = self._checkpoint.with_suffix(".part")
        save_file({name: value.contiguous() for name, value in tensors.items()}, temporary, about)
        temporary.replace(self._checkpoint)

    def _resume(self) -> None:
        with safe_open(self._checkpoint, "pt", device=str(self.compute.device)) as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if ParallelRecipe.model_validate_json(about["recipe"]) != self.recipe:
            raise TrainingError(
                f"{self._checkpoint} was begun with another recipe: choose another --output, or "
                "pass the same recipe"
            )
        with torch.no_grad():
            for name, weight in self._named():
                weight.copy_(tensors[f"draft.{name}"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, of_weight = name.split(".")
                state.setdefault(int(number), {})[of_weight] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.progress = Progress(**json.loads(about["progress"]))

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [named for named in self.draft.named_parameters() if named[1].requires_grad]

    def step(self, done: float) -> None:
        """Make one step. `done` is the share of the training before it; the rates follow it."""
        self._set_rates(done)
        recipe, progress = self.recipe, self.progress
        generator = np.random.default_rng((recipe.seed, progress.step))
        batch = self._batch(generator)
        parts = np.array_split(batch, min(self._workers, len(batch)))
        generators = generator.spawn(len(parts))
        self._optimizer.zero_grad(set_to_none=True)
        found = list(self._pool.map(self._part, parts, generators))
        for weight, *gradients in zip(
            self._weights, *(part.gradients for part in found), strict=True
        ):
            weight.grad = torch.stack(gradients).mean(dim=0)
        nn.utils.clip_grad_norm_(self._weights, recipe.clip)
        self._optimizer.step()
        mean = np.mean([(part.masks, part.held) for part in found], axis=0)
        progress.losses = [*progress.losses[-199:], (float(mean[0]), float(mean[1]))]
        if not math.isfinite(progress.losses[-1][0]):
            raise TrainingError(
                f"the loss is {progress.losses[-1][0]} at step {progress.step}: lower peak_rate "
                f"({recipe.peak_rate}) and start afresh in another folder"
            )
        progress.step += 1
        progress.rows += sum(part.rows for part in found)

    def _part(self, batch: Batch, generator: np.random.Generator) -> _Part:
        """Losses and gradients of a part of a step, in a thread of its own."""
        recipe = self.recipe
        with self.compute.autocast():
            losses = losses_of(self.draft, self._teacher, batch, recipe, generator)
            loss = losses.masks + recipe.held_weight * losses.held
        gradients = torch.autograd.grad(loss, self._weights)
        return _Part(losses.masks.item(), losses.held.item(), losses.rows, gradients)

    def _batch(self, generator: np.random.Generator) -> Batch:
        """Windows of random texts, int64 [windows, tokens]; half of them begin with their text."""
        length, recipe = self._train.shape[1], self.recipe
        rows = generator.choice(len(self._train), recipe.windows, replace=False)
        starts = generator.integers(0, length - recipe.window + 1, recipe.windows)
        starts[::2] = 0
        return np.stack(
            [
                np.asarray(self._train[row, start : start + recipe.window], np.int64)
                for row, start in zip(rows, starts, strict=True)
            ]
        )

    def _set_rates(self, done: float) -> None:
        recipe = self.recipe
        warm = min(1.0, (self.progress.step + 1) / max(1, recipe.warmup_steps))
        left = min(1.0, (1.0 - done) / (1.0 - recipe.hold))
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * warm * left

    def _adamw(self) -> torch.optim.AdamW:
        """AdamW that decays matrices, and leaves norms and masks alone."""
        recipe = self.recipe
        layers = [w for w in self._weights if w is not self.draft.masks]
        groups = [
            (recipe.peak_rate, recipe.weight_decay, [w for w in layers if w.dim() >= 2]),
            (recipe.peak_rate, 0.0, [w for w in layers if w.dim() < 2]),
            (recipe.mask_rate, 0.0, [self.draft.masks]),
        ]
        return torch.optim.AdamW(
            [{"params": of, "weight_decay": decay, "peak": rate} for rate, decay, of in groups],
            lr=recipe.peak_rate,
            betas=_BETAS,
            fused=True,
        )
