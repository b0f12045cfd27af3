"""What makes a candidate final, by the value of the setting `speculation.acceptance`."""

from __future__ import annotations

from card.speculation.acceptance.exact import Exact
from card.speculation.acceptance.interface import AcceptanceRule, TargetRows, VerifyResult

__all__ = ["RULES", "AcceptanceRule", "TargetRows", "VerifyResult"]

RULES: dict[str, AcceptanceRule] = {
    "exact": Exact(),
}
