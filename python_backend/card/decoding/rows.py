"""How many rows a target pass should hold, from what rows cost on this machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

EXPECTED_AGREEMENT = 0.8
"""Chance that a drafted token is accepted: that of the bundled pair on its own greedy text. Rows
beyond what it pays for would slow passes whose draft is not that good."""

UNMEASURED_ROWS = 8


def ideal_tokens(rows: int, agreement: float) -> float:
    """Expected tokens of one pass over a chain of `rows` - 1 candidates and the last committed
    token, each candidate being accepted with chance `agreement`: (1 - a^rows) / (1 - a)."""
    if agreement >= 1.0:
        return float(rows)
    return float((1.0 - agreement**rows) / (1.0 - agreement))


def choose_rows(
    costs_ms: Mapping[int, float], sessions: int = 1, agreement: float = EXPECTED_AGREEMENT
) -> int:
    """Rows per session that give most tokens per second when `sessions` share a pass.

    costs_ms  milliseconds of a pass by its rows; costs between and beyond are interpolated
    """
    if not costs_ms:
        return UNMEASURED_ROWS
    rows = sorted(costs_ms)

    def speed(per_session: int) -> float:
        return ideal_tokens(per_session, agreement) / _cost(costs_ms, rows, per_session * sessions)

    return max((count for count in rows), key=speed)


def _cost(costs_ms: Mapping[int, float], rows: list[int], wanted: int) -> float:
    if wanted <= rows[-1]:
        return float(np.interp(wanted, rows, [costs_ms[row] for row in rows]))
    # Beyond the curve a row costs what it cost at its end.
    slope = (costs_ms[rows[-1]] - costs_ms[rows[0]]) / max(1, rows[-1] - rows[0])
    return costs_ms[rows[-1]] + max(0.0, slope) * (wanted - rows[-1])
