"""Ranks the likeliest ids of a pass's rows on the device, so that a draft reads only these.

Requests are queued; several may be under way before the first answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from card.engines.interface import RankedIds, Ranking, SequenceTokens, wanted_rows
from card.engines.torch.captured.kernels.ranking import MOST_RANKED, rank
from card.engines.torch.captured.static import Replayed


@dataclass(frozen=True, slots=True)
class Asked:
    """A ranking under way.

    batch   the ranked rows
    rows    number of ranked rows
    found   result of `kernels.ranking.rank` on the device, valid until the next ranking
    answer  copy of the result on the host, valid once the copy is complete
    """

    batch: Sequence[SequenceTokens]
    rows: int
    found: Tensor
    answer: Tensor

    @property
    def likeliest(self) -> Tensor:
        """[1] int32 on the device, the likeliest id of the last row."""
        return self.found[0, self.rows - 1, :1]

    def ranked(self) -> list[RankedIds]:
        """What each session asked for, once the answer is there."""
        ids, bits = self.answer[:, : self.rows].numpy()
        ids, log_probabilities = ids.astype(np.int64), bits.view(np.float32).copy()
        ranked = []
        for rows, at in wanted_rows(self.batch):
            count = 0 if rows.ranking is None else rows.ranking.count
            ranked.append(RankedIds(ids[at, :count], log_probabilities[at, :count]))
        return ranked


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

    def ask(self, batch: Sequence[SequenceTokens], logits: Tensor | None) -> Asked:
        """Queue what each session asks of its rows.

        logits  [all wanted rows or more, vocabulary] float32, one tensor for each number of rows
        """
        if logits is None:
            raise ValueError("no row of the pass has logits")
        draws = any(rows.ranking is not None and rows.ranking.keys is not None for rows in batch)
        key = len(logits), draws
        if key not in self._static:
            self._static[key] = _StaticRanking(logits, self._device, self._pool, draws=draws)
        return self._static[key].ask(batch)

    def answers(self, asked: Sequence[Asked]) -> list[list[RankedIds]]:
        """Wait once for all that was asked."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        found = [each.ranked() for each in asked]
        for static in self._static.values():
            static.know_answered()
        return found


def _is_taken(ranking: Ranking | None) -> bool:
    if ranking is None or ranking.count > MOST_RANKED:
        return False
    return ranking.noise is None or ranking.keys is not None


class _StaticRanking:
    """For so many rows: buffers that stay, and the kernels over them."""

    def __init__(self, logits: Tensor, device: torch.device, pool: Any, *, draws: bool) -> None:
        self._rows = rows = len(logits)
        self._pins = device.type == "cuda"
        self._draws = draws
        # Keys first; the factors and scales of rows share the other half.
        self._question = question = torch.zeros(2, rows, dtype=torch.int64, device=device)
        self._found = found = torch.zeros(2, rows, MOST_RANKED, dtype=torch.int32, device=device)
        self._hosts: list[_Host] = []
        self._asked = 0
        factors, scales = question[1].view(torch.float32).view(2, rows)
        self._replayed = Replayed(
            lambda: rank(logits, factors, scales, question[0], found, draws=draws), device, pool
        )

    def ask(self, batch: Sequence[SequenceTokens]) -> Asked:
        if self._asked == len(self._hosts):
            self._hosts.append(_Host.of(self._rows, pins=self._pins))
        host = self._hosts[self._asked]
        self._asked += 1
        host.fill(batch, draws=self._draws)
        self._question.copy_(host.question, non_blocking=True)
        self._replayed.run()
        host.answer.copy_(self._found, non_blocking=True)
        count = sum(rows.wanted for rows in batch)
        return Asked(batch, count, self._found, host.answer)

    def know_answered(self) -> None:
        """All copies are done, and read."""
        self._asked = 0


@dataclass(frozen=True, slots=True)
class _Host:
    """A question on the host, and room for its answer.

    question  [2, rows] int64: keys; factors and scales, each [rows] float32
    answer    [2, rows, MOST_RANKED] int32
    """

    question: Tensor
    answer: Tensor

    @classmethod
    def of(cls, rows: int, *, pins: bool) -> _Host:
        return cls(
            torch.zeros(2, rows, dtype=torch.int64, pin_memory=pins),
            torch.zeros(2, rows, MOST_RANKED, dtype=torch.int32, pin_memory=pins),
        )

    def fill(self, batch: Sequence[SequenceTokens], *, draws: bool) -> None:
        """Write what is asked of each row."""
        question = self.question.numpy()
        keys = question[0].view(np.uint64)
        factors, scales = question[1].view(np.float32).reshape(2, -1)
        factors[:] = 0.0
        for rows, at in wanted_rows(batch):
            if rows.ranking is None:
                continue
            factors[at] = 1.0 / rows.ranking.temperature
            if draws:
                own = rows.ranking.keys
                scales[at] = own is not None
                keys[at] = 0 if own is None else own
