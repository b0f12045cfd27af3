"""The likeliest ids of rows, chosen where their logits are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from card.engines.interface import Ranking


def rank(logits: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    """Ids [rows, count] int64, likeliest first, and their log-probabilities in float32."""
    values = logits.float() / ranking.temperature
    if ranking.noise is not None:
        noise = torch.from_numpy(np.stack(ranking.noise))
        values += noise.to(logits.device, non_blocking=True)
    values = torch.log_softmax(values, dim=-1, dtype=torch.float32)
    best = values.topk(min(ranking.count, values.shape[-1]), dim=-1)
    return best.indices, best.values
