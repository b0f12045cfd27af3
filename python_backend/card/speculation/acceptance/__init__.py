"""Acceptance rules, by the value of the setting `speculation.acceptance`."""

from __future__ import annotations

from card.speculation.acceptance.exact import (
    AcceptanceConfig,
    Exact,
    Outcome,
    TargetRows,
    VerifyResult,
)
from card.speculation.acceptance.loose import Loose

__all__ = ["RULES", "AcceptanceConfig", "Exact", "Outcome", "TargetRows", "VerifyResult"]

RULES: dict[str, type[Exact]] = {
    "exact": Exact,
    "loose": Loose,
}
