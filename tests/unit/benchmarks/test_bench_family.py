"""The systems of the family."""

from __future__ import annotations

import pytest

from bench.systems import SYSTEMS
from card.settings import Settings
from card.speculation.pacing import PACINGS, PLAIN


@pytest.mark.parametrize("name", SYSTEMS)
def test_system_is_settings_that_a_server_takes(name: str) -> None:
    system = SYSTEMS[name]
    wanted = {"decoding": system.decoding, **system.speculation}
    if not system.lossless:
        wanted["lossy_acceptance"] = [system.acceptance]
    Settings.model_validate({"speculation": wanted})
    assert system.decoding in PACINGS


def test_target_alone_is_the_first_system() -> None:
    assert next(iter(SYSTEMS)) == PLAIN
