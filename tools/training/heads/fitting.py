"""The training loop: it runs for some minutes, and writes the head and its curve on the way."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.compute import Compute
from training.heads.kind import Kind
from training.heads.recipe import HeadRecipe
from training.heads.states import TappedTarget
from training.parallel.files import Texts
from training.progress import Show, silent

_EVALUATE_EVERY_S = 300.0


@dataclass(frozen=True)
class Agreement:
    """Figures of held-out texts, by lag: if the newest 0, 1, ... tokens have no states.

    accepted  tokens that are accepted of the recipe's `steps`
    right     share of right next tokens
    """

    accepted: list[float]
    right: list[float]


class HeadTraining:
    """One training in a folder: `head` and `curve.jsonl`."""

    def __init__(
        self,
        kind: Kind,
        target: TappedTarget,
        texts: Texts,
        recipe: HeadRecipe,
        folder: Path,
        compute: Compute,
    ) -> None:
        self.kind, self._compute = kind, compute
        self._target, self._recipe, self._folder = target, recipe, folder
        self._texts, self._held_out = texts[: -recipe.held_out], texts[-recipe.held_out :]
        self._random = np.random.default_rng(recipe.seed)
        self._recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=recipe.recent)
        groups = [group | {"peak": group["lr"]} for group in kind.weights(recipe.learning_rate)]
        self._optimizer = torch.optim.AdamW(
            groups, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self._weights = [weight for group in groups for weight in group["params"]]
        self.losses: list[float] = []

    def run(self, seconds: float, show: Show = silent) -> None:
        """Train for `seconds`; evaluates on the way."""
        began = evaluated = time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            self.step(spent / seconds)
            show(spent / seconds, f"step {len(self.losses)}, loss {self.losses[-1]:.3f}")
            if time.monotonic() - evaluated >= _EVALUATE_EVERY_S:
                self.evaluate()
                evaluated = time.monotonic()

    def step(self, share: float) -> None:
        """Lower the loss of some windows; `share` of the training is done."""
        recipe = self._recipe
        warm = min(1.0, (len(self.losses) + 1) / recipe.warm_up_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * warm * 0.5 * (1 + math.cos(math.pi * share))
        self._optimizer.zero_grad()
        total = 0.0
        for _ in range(recipe.windows):
            tokens, states = self._window()
            with self._compute.autocast():
                loss = self.kind.loss(tokens, states.float(), self._random) / recipe.windows
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._weights, recipe.clip)
        self._optimizer.step()
        self.losses.append(total)

    def evaluate(self) -> Agreement:
        """Read held-out texts, add a line to the curve and write the head."""
        recipe = self._recipe
        with torch.inference_mode(), self._compute.autocast():
            right = torch.cat(
                [
                    self.kind.right(*self._read(text), recipe.lags)
                    for text in self._held_out[: recipe.evaluation_texts, : recipe.window]
                ],
                dim=1,
            ).float()
        figures = Agreement(
            [round(tokens, 4) for tokens in right.cumprod(-1).sum(-1).mean(1).tolist()],
            [round(share, 4) for share in right[..., 0].mean(1).tolist()],
        )
        loss = float(np.mean(self.losses[-200:])) if self.losses else math.nan
        line = {"step": len(self.losses), "loss": round(loss, 4), **asdict(figures)}
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "curve.jsonl").open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(line) + "\n")
        self.kind.write()
        return figures

    def _window(self) -> tuple[Tensor, Tensor]:
        """A window of a text, or a recent one with known states."""
        recipe, random = self._recipe, self._random
        if self._recent and random.random() * recipe.reads >= 1:
            return self._recent[random.integers(len(self._recent))]
        text = self._texts[random.integers(len(self._texts))]
        start = random.integers(len(text) - recipe.window + 1)
        tokens, states = self._read(text[start : start + recipe.window])
        self._recent.append((tokens, states.bfloat16()))
        return self._recent[-1]

    def _read(self, text: Texts) -> tuple[Tensor, Tensor]:
        """The tokens of a text and the target's states of them."""
        window = np.array(text, np.int64)
        return torch.from_numpy(window), self._target.states(window)
