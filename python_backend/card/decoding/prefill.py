"""Divides the rows of a pass among prompts and running streams."""

from __future__ import annotations

from collections.abc import Mapping

from card.engines.row_costs import CostCurve

_NEARLY_AS_FAST = 0.8
"""A pass of half a chunk's rows is preferred if it reads at least this share of the prompt tokens
per second of a whole chunk, because streams wait half as long."""


class Prefill:
    """Shares a chunk of rows among prompts and streams, so that a stream never waits for more than
    one pass of a chunk's rows.

    chunk     most prompt tokens of a pass, and most rows of a pass with streams
    costs_ms  milliseconds of a pass by its rows; empty if not measured
    """

    def __init__(self, chunk: int, costs_ms: Mapping[int, float]) -> None:
        self._chunk = chunk
        self._half = max(1, chunk // 2)
        self._curve = CostCurve(costs_ms) if costs_ms else None

    def rows_of_streams(self, prompts: int) -> int:
        """Rows that all streams together may verify while `prompts` sessions read prompts. The
        prompts always get the other half of the chunk, or a token for each."""
        return max(1, self._chunk - max(self._half, prompts))

    def tokens(self, prompts: int, streaming: int) -> int:
        """Prompt tokens that each of `prompts` sessions may read in a pass with `streaming` rows of
        streams.

        The streams' rows count as part of the chunk. If every row takes time (a processor), a pass
        of half a chunk reads prompts nearly as fast, and is preferred. If rows are nearly free (a
        GPU), it is slower.
        """
        if not streaming:
            return max(1, self._chunk // prompts)
        most = max(1, max(self._half, self._chunk - streaming) // prompts)
        of_half = (self._half - streaming) // prompts
        if of_half > 0 and self._curve is not None:
            half_ms, most_ms = (
                self._curve.pass_ms(streaming + prompts * each) for each in (of_half, most)
            )
            if of_half / half_ms >= _NEARLY_AS_FAST * most / most_ms:
                return of_half
        return most
