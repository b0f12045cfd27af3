"""The training loop: it runs for some minutes, and writes the head and its curve on the way."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from training.heads.files import make_head, write_head
from training.heads.recipe import HeadRecipe
from training.heads.states import TappedTarget
from training.heads.unrolling import unrolled
from training.parallel.files import Texts
from training.progress import Show, silent

_NO_LABEL = -100


@dataclass(frozen=True)
class Agreement:
    """Figures of held-out texts, by lag: if the newest 0, 1, ... tokens have no states.

    accepted  tokens that are accepted of a chain of the recipe's `steps`
    right     share of right next tokens
    """

    accepted: list[float]
    right: list[float]


class HeadTraining:
    """One training in a folder: `head` and `curve.jsonl`."""

    def __init__(
        self,
        config: dict[str, Any],
        target: TappedTarget,
        texts: Texts,
        ranked: NDArray[np.int64],
        recipe: HeadRecipe,
        folder: Path,
    ) -> None:
        self._config, self._target, self._recipe = config, target, recipe
        self._ranked, self._folder = ranked, folder
        self._texts, self._held_out = texts[: -recipe.held_out], texts[-recipe.held_out :]
        self._random = np.random.default_rng(recipe.seed)
        self.head = make_head(config, target, ranked, folder / "head")
        labels = np.full(target.architecture.vocabulary, _NO_LABEL)
        labels[ranked] = np.arange(len(ranked))
        self._labels = torch.from_numpy(labels)
        self._optimizer = torch.optim.AdamW(
            self.head.parameters(),
            lr=recipe.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=recipe.weight_decay,
        )
        self.losses: list[float] = []

    def run(self, seconds: float, evaluate_every: float, show: Show = silent) -> None:
        """Train for `seconds`."""
        began = evaluated = time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            self.step(spent / seconds)
            show(spent / seconds, f"step {len(self.losses)}, loss {self.losses[-1]:.3f}")
            if time.monotonic() - evaluated >= evaluate_every:
                self.evaluate()
                evaluated = time.monotonic()

    def step(self, share: float) -> None:
        """Lower the loss of one window; `share` of the training is done."""
        recipe = self._recipe
        warm = min(1.0, (len(self.losses) + 1) / recipe.warm_up_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * share))
        text = self._texts[self._random.integers(len(self._texts))]
        start = self._random.integers(len(text) - recipe.window + 1)
        window = np.array(text[start : start + recipe.window], np.int64)
        states, tokens = self._target.states(window), torch.from_numpy(window)
        loss, weight = torch.zeros(()), 1.0
        for logits, wanted in unrolled(
            self.head, self._target.embedding, tokens, states, recipe.steps
        ):
            found = F.cross_entropy(logits, self._labels[wanted], ignore_index=_NO_LABEL)
            loss, weight = loss + weight * found, weight * recipe.step_weight
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), recipe.clip)
        self._optimizer.step()
        self.losses.append(float(loss.detach()))

    def evaluate(self) -> Agreement:
        """Read held-out texts, add a line to the curve and write the head."""
        recipe, right = self._recipe, []
        for text in self._held_out[: recipe.evaluation_texts, : recipe.window]:
            window = np.array(text, np.int64)
            states, tokens = self._target.states(window), torch.from_numpy(window)
            steps = recipe.lags + recipe.steps - 1
            rows = len(window) - 1 - steps  # which every pass has
            with torch.inference_mode():
                passes = unrolled(self.head, self._target.embedding, tokens, states, steps)
                right.append(
                    torch.stack(
                        [
                            (logits.argmax(-1) == self._labels[wanted])[:rows]
                            for logits, wanted in passes
                        ]
                    )
                )
        found = torch.cat(right, dim=1).float()
        chains = [found[lag : lag + recipe.steps].cumprod(dim=0) for lag in range(recipe.lags)]
        figures = Agreement(
            [round(float(chain.sum(dim=0).mean()), 4) for chain in chains],
            [round(float(share), 4) for share in found[: recipe.lags].mean(dim=1)],
        )
        loss = float(np.mean(self.losses[-200:])) if self.losses else math.nan
        line = {"step": len(self.losses), "loss": round(loss, 4), **asdict(figures)}
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "curve.jsonl").open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(line) + "\n")
        write_head(self.head, self._config, self._ranked, self._folder / "head")
        return figures
