"""What pays, by the value of the setting `speculation.control`."""

from __future__ import annotations

from card.speculation.control.fixed import Fixed
from card.speculation.control.interface import (
    ControlConfig,
    ControlledSession,
    Controller,
    Share,
    StepPlan,
)
from card.speculation.control.measured import Measured

__all__ = [
    "CHOOSES_ROWS",
    "CONTROLLERS",
    "ControlConfig",
    "ControlledSession",
    "Controller",
    "Share",
    "StepPlan",
]

CONTROLLERS: dict[str, type[Controller]] = {
    "measured": Measured,
    "fixed": Fixed,
}

CHOOSES_ROWS = {kind.chooses_rows: name for name, kind in reversed(CONTROLLERS.items())}
"""Registry keys by whether the controller finds out how many rows pay; of several the first."""
