"""What `streams` measures, and how it is made from what happened."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Commit = tuple[float, int]
"""Seconds since the run began, and how many tokens came."""


@dataclass(frozen=True)
class StreamsRow:
    """So many streams at once; where a text ends the next one begins.

    tokens_per_s       of all texts, from the beginning of the first to the end of the last
    full_tokens_per_s  the same while there are so many streams: until no text is left to begin
    p50_ms, p99_ms     inter-token latency: the time between two commits of a stream, divided among
                       the tokens of the later one
    gap_p99_ms         time between two commits of a stream, not divided
    first_token_ms     from the beginning of a text, median over the texts
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


@dataclass
class StreamedText:
    """One text: when it began, in seconds, and what came of it."""

    begun_s: float
    commits: list[Commit] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.commits)

    @property
    def ended_s(self) -> float:
        return self.commits[-1][0]


def row_of(
    system: str,
    streams: int,
    texts: Sequence[StreamedText],
    tokens_per_step: float,
    texts_equal: bool,
) -> StreamsRow:
    """The figures of one run."""
    ends = sorted(text.ended_s for text in texts)
    full_s = ends[-streams]
    full = sum(count for text in texts for at, count in text.commits if at <= full_s)
    gaps, per_token = [], []
    for text in texts:
        for (before, _), (now, count) in itertools.pairwise(text.commits):
            gaps.append(now - before)
            per_token += [(now - before) / count] * count
    return StreamsRow(
        system=system,
        streams=streams,
        tokens_per_s=sum(text.tokens for text in texts) / ends[-1],
        full_tokens_per_s=full / full_s,
        p50_ms=1e3 * _percentile(per_token, 50),
        p99_ms=1e3 * _percentile(per_token, 99),
        gap_p99_ms=1e3 * _percentile(gaps, 99),
        first_token_ms=1e3 * _percentile([text.commits[0][0] - text.begun_s for text in texts], 50),
        tokens_per_step=tokens_per_step,
        texts_equal=texts_equal,
    )


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0
