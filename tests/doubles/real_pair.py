"""A pair of real weights in a few megabytes, for tests that want a pair and no sense.

`tests/pair/README.md` says how it is made.
"""

from __future__ import annotations

from typing import Any

from card.settings import REPOSITORY_ROOT, Settings, load_settings

PAIR = REPOSITORY_ROOT / "tests/pair"
TARGET, DRAFT = PAIR / "target", PAIR / "draft"
PAIR_VARIABLES = {"CARD_TARGET__PATH": str(TARGET), "CARD_DRAFT__PATH": str(DRAFT)}
"""Of the environment of programs that are to take this pair."""


def pair_settings(**sections: Any) -> Settings:
    """The default settings, but for this pair and for what `sections` say."""
    paths = {role: {"path": PAIR / role, **sections.get(role, {})} for role in ("target", "draft")}
    return load_settings(**sections | paths)
