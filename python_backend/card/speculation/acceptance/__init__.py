"""Acceptance rules, by the value of the setting `speculation.acceptance`."""

from __future__ import annotations

from card.speculation.acceptance.exact import Exact
from card.speculation.acceptance.interface import (
    AcceptanceConfig,
    AcceptanceRule,
    TargetRows,
    VerifyResult,
)
from card.speculation.acceptance.loose import Loose

__all__ = ["RULES", "AcceptanceConfig", "AcceptanceRule", "TargetRows", "VerifyResult"]

RULES: dict[str, type[AcceptanceRule]] = {
    "exact": Exact,
    "loose": Loose,
}
