"""No JSON whatever makes the gateway fail. `CARD_FUZZ_EXAMPLES=2000` tries as many bodies."""

from __future__ import annotations

import os

from fuzz_gateway import fuzz_gateway

SEED = 48
EXAMPLES = int(os.environ.get("CARD_FUZZ_EXAMPLES", "300"))


def test_body_is_answered_or_refused_when_it_is_hostile() -> None:
    assert fuzz_gateway(SEED, EXAMPLES) >= EXAMPLES
