"""How much of their prompts sessions read in a pass, alone and beside streams that run."""

from __future__ import annotations

from collections.abc import Mapping

from card.engines.row_costs import CostCurve

_NEARLY_AS_FAST = 0.8
"""Of the prompt tokens per second that a pass of a whole chunk's rows reads: with this much, a pass
of half the rows is preferred, for streams wait half as long."""


class Prefill:
    """Shares a chunk of rows among prompts and streams, so that whoever streams waits for one pass
    of a chunk's rows at most.

    chunk     most prompt tokens of a pass, and most rows of one that streams share
    costs_ms  milliseconds of a pass by its rows; empty where nothing was measured
    """

    def __init__(self, chunk: int, costs_ms: Mapping[int, float]) -> None:
        self._chunk = chunk
        self._half = max(1, chunk // 2)
        self._curve = CostCurve(costs_ms) if costs_ms else None

    def rows_of_streams(self, prompts: int) -> int:
        """That streams may verify in all while `prompts` sessions read theirs, if each has one: the
        other half of the chunk, or a token for each, is the prompts', whatever streams take."""
        return max(1, self._chunk - max(self._half, prompts))

    def tokens(self, prompts: int, streaming: int) -> int:
        """Prompt tokens that each of `prompts` sessions may read of a pass in which streams verify
        `streaming` rows.

        The streams' rows count as part of the chunk. Where every row takes its time (a processor)
        half a chunk's rows in all serve prompts nearly as fast, and are preferred; where rows are
        nearly free (a GPU) they do not.
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
