"""The likeliest ids of the rows of a pass, ranked where their logits are: a draft reads no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from card.engines.interface import Ranking, SequenceTokens
from card.engines.logits import RankedIds
from card.engines.torch.captured.graphs import Replayed
from card.engines.torch.captured.kernels.ranking import MOST_RANKED, rank


class DeviceRanking:
    """Ranks rows of logits by kernels, with one copy to the device and one back.

    pool  handle of the memory that graphs share
    """

    def __init__(self, device: torch.device, pool: Any) -> None:
        self._device = device
        self._pool = pool
        self._static: dict[tuple[int, bool], _StaticRanking] = {}

    def takes(self, batch: Sequence[SequenceTokens]) -> bool:
        """Whether everything that is wanted of a pass can be ranked so."""
        return all(not rows.wanted or _is_taken(rows.ranking) for rows in batch)

    def rank(self, batch: Sequence[SequenceTokens], logits: Tensor) -> list[RankedIds]:
        """Wait for what each session asks of its rows.

        logits  [at least all wanted rows, vocabulary], the same tensor for the same number of rows
        """
        draws = any(rows.ranking is not None and rows.ranking.keys is not None for rows in batch)
        key = len(logits), draws
        if key not in self._static:
            self._static[key] = _StaticRanking(logits, self._device, self._pool, draws=draws)
        ids, log_probabilities = self._static[key].run(batch)
        found = []
        at = 0
        for rows in batch:
            wanted = slice(at, at + rows.wanted)
            count = 0 if rows.ranking is None else rows.ranking.count
            found.append(RankedIds(ids[wanted, :count], log_probabilities[wanted, :count]))
            at = wanted.stop
        return found


def _is_taken(ranking: Ranking | None) -> bool:
    if ranking is None or ranking.count > MOST_RANKED:
        return False
    return ranking.noise is None or ranking.keys is not None


class _StaticRanking:
    """For so many rows: buffers that stay, and the kernels over them."""

    def __init__(self, logits: Tensor, device: torch.device, pool: Any, *, draws: bool) -> None:
        rows = len(logits)
        on_device = device.type == "cuda"
        self._draws = draws
        # Keys first; factors and scales share a row of 64 bits each.
        self._host = torch.zeros(2, rows, dtype=torch.int64, pin_memory=on_device)
        self._asked = torch.zeros(2, rows, dtype=torch.int64, device=device)
        self._found = torch.zeros(2, rows, MOST_RANKED, dtype=torch.int32, device=device)
        self._read = torch.zeros(2, rows, MOST_RANKED, dtype=torch.int32, pin_memory=on_device)
        self._keys = self._host[0].numpy().view(np.uint64)
        self._factors, self._scales = self._host[1].view(torch.float32).view(2, rows).numpy()
        self._device = device
        asked, found = self._asked, self._found
        factors, scales = asked[1].view(torch.float32).view(2, rows)
        self._replayed = Replayed(
            lambda: rank(logits, factors, scales, asked[0], found, draws=draws), device, pool
        )

    def run(self, batch: Sequence[SequenceTokens]) -> tuple[np.ndarray, np.ndarray]:
        """Ids [rows, MOST_RANKED] int64 and log-probabilities, float32, of all wanted rows."""
        at = 0
        self._factors.fill(0.0)
        for rows in batch:
            if rows.ranking is None or not rows.wanted:
                continue
            wanted = slice(at, at + rows.wanted)
            self._factors[wanted] = 1.0 / rows.ranking.temperature
            if self._draws:
                keys = rows.ranking.keys
                self._scales[wanted] = keys is not None
                self._keys[wanted] = 0 if keys is None else keys
            at = wanted.stop
        self._asked.copy_(self._host, non_blocking=True)
        self._replayed.run()
        self._read.copy_(self._found, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        ids, bits = self._read[:, :at].numpy()
        return ids.astype(np.int64), bits.view(np.float32).copy()
