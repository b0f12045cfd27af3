"""The speed-up that the planner computes for a measured pair on this machine."""

from __future__ import annotations

from card.settings import Settings
from card.speculation.pacing import PACINGS
from importing.agreement import share_within
from importing.measuring import Measured
from planning import Pair, estimates


def predicted_speed_up(settings: Settings, measured: Measured) -> float:
    """Tokens per second of the settings' pacing relative to decoding alone, one stream.

    Both models have the costs of passes that they had alone: with cores and memory that they must
    share, the speed-up is less.
    """
    pair = Pair(measured.target_costs_ms, measured.draft_costs_ms)
    alone, *ways = estimates(pair, share_within(measured.ranks, 1))
    pacing = "parallel" if PACINGS[settings.decoding].parallel else "serial"
    chain = next(way for way in ways if (way.pacing, way.shape) == (pacing, "chain"))
    return chain.tokens_per_s / alone.tokens_per_s
