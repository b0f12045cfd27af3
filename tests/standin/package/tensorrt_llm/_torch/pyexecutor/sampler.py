"""A sampler like TorchSampler: one generator per engine, every verified row sampled.

From 1.3.0rc24 penalties and bad words are applied; here with the history of the request's first
row to all of its rows, which is wrong behind a candidate: why such requests go without.
"""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from tensorrt_llm import __version__
from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequest

_VERSION = tuple(int(n) for n in re.findall(r"\d+", __version__)[:4])
HONOURS_PENALTIES = _VERSION >= (1, 3, 0, 24)


class TorchSampler:
    def __init__(self) -> None:
        self._generator = np.random.default_rng(42)

    def sample(self, request: LlmRequest, logits: NDArray) -> int:
        parameters = request.sampling_params
        row = logits.astype(np.float64)
        output = request.output
        if parameters.min_tokens and len(output) < parameters.min_tokens and request.py_end_id >= 0:
            row[request.py_end_id] = -np.inf
        if HONOURS_PENALTIES:
            row = _penalised(row, request)
        if parameters.is_greedy:
            return int(row.argmax())
        return self._draw(row, parameters.temperature or 1.0, parameters.top_k, parameters.top_p)

    def _draw(
        self, row: NDArray, temperature: float, top_k: int | None, top_p: float | None
    ) -> int:
        weights = np.exp((row - row.max()) / temperature)
        order = np.argsort(-weights, kind="stable")
        if top_k:
            weights[order[top_k:]] = 0.0
        if top_p is not None and top_p < 1.0:
            mass = np.cumsum(weights[order]) / weights.sum()
            weights[order[int(np.searchsorted(mass, top_p)) + 1 :]] = 0.0
        return int(self._generator.choice(len(weights), p=weights / weights.sum()))


def top_logprobs(logits: NDArray, count: int) -> dict[int, float]:
    """The `count` likeliest ids of the unprocessed row; the sampled one may not be among them."""
    row = logits.astype(np.float64)
    normaliser = row.max() + math.log(np.exp(row - row.max()).sum())
    best = np.argsort(-row, kind="stable")[:count].tolist()
    return {int(i): float(row[i] - normaliser) for i in best}


def _penalised(row: NDArray, request: LlmRequest) -> NDArray:
    parameters = request.sampling_params
    ids, counts = np.unique(np.array(request.get_tokens(0)), return_counts=True)
    seen = row[ids]
    if parameters.repetition_penalty is not None:
        penalty = parameters.repetition_penalty
        seen = np.where(seen > 0, seen / penalty, seen * penalty)
    row = row.copy()
    row[ids] = (
        seen
        - (parameters.presence_penalty or 0.0)
        - ((parameters.frequency_penalty or 0.0) * counts)
    )
    row[parameters.bad_token_ids or []] = -np.inf
    return row
