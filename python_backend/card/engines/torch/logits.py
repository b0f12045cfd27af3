"""Logits as tensors, and the likeliest ids of rows, chosen where their logits are."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.interface import Ranking


class TensorLogits:
    """Logits of one session's rows, [rows, vocabulary].

    states  [rows, numbers] bfloat16 on the host
    """

    def __init__(
        self, values: Tensor, ranking: Ranking | None = None, states: Tensor | None = None
    ) -> None:
        self._values = values
        self._ranking = ranking
        self._states = states

    @property
    def states(self) -> NDArray[np.uint16] | None:
        return None if self._states is None else self._states.view(torch.int16).numpy().view("u2")

    def row(self, index: int) -> NDArray[np.float32]:
        return self._values[index].float().numpy()

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if self._ranking is None:
            raise ValueError("no ranking was asked for (SequenceTokens.ranking)")
        with torch.inference_mode():
            ids, log_probabilities = rank(self._values, self._ranking)
        return ids.numpy(), log_probabilities.numpy()


def rank(logits: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    """Ids [rows, count] int64, likeliest first, and their log-probabilities in float32."""
    values = logits.float() / ranking.temperature
    if ranking.noise is not None:
        noise = torch.from_numpy(np.stack(ranking.noise))
        values += noise.to(logits.device, non_blocking=True)
    values = torch.log_softmax(values, dim=-1, dtype=torch.float32)
    best = values.topk(min(ranking.count, values.shape[-1]), dim=-1)
    return best.indices, best.values
