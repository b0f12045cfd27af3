"""What `streams` measures, and how it is made from what happened."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Commit = tuple[float, int]
"""Seconds since the beginning, and how many tokens came."""


@dataclass(frozen=True)
class StreamsRow:
    """So many streams at once, all begun together.

    tokens_per_s       of all streams, from their beginning to the end of the last
    full_tokens_per_s  the same to the end of the first, while there are so many
    p50_ms, p99_ms     inter-token latency: the time between two commits of a stream, divided among
                       the tokens of the later one
    gap_p99_ms         time between two commits of a stream, not divided
    first_token_ms     median over the streams
    texts_equal        every text is what autoregressive decoding wrote to a stream by itself
    """

    system: str
    streams: int
    tokens_per_s: float
    full_tokens_per_s: float
    p50_ms: float
    p99_ms: float
    gap_p99_ms: float
    first_token_ms: float
    tokens_per_step: float
    texts_equal: bool


def row_of(
    system: str,
    commits: Sequence[Sequence[Commit]],
    tokens_per_step: float,
    texts_equal: bool,
) -> StreamsRow:
    """The figures of one run; `commits` by stream."""
    tokens = sum(count for stream in commits for _, count in stream)
    ends = [stream[-1][0] for stream in commits]
    full = sum(count for stream in commits for at, count in stream if at <= min(ends))
    gaps, per_token = [], []
    for stream in commits:
        for (before, _), (now, count) in itertools.pairwise(stream):
            gaps.append(now - before)
            per_token += [(now - before) / count] * count
    return StreamsRow(
        system=system,
        streams=len(commits),
        tokens_per_s=tokens / max(ends),
        full_tokens_per_s=full / min(ends),
        p50_ms=1e3 * _percentile(per_token, 50),
        p99_ms=1e3 * _percentile(per_token, 99),
        gap_p99_ms=1e3 * _percentile(gaps, 99),
        first_token_ms=1e3 * _percentile([stream[0][0] for stream in commits], 50),
        tokens_per_step=tokens_per_step,
        texts_equal=texts_equal,
    )


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0
