"""The systems of the family."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_pair import TARGET
from small_heads import save_random_head

from bench.contest import _with_small_draft
from bench.systems import SYSTEMS, systems_for
from card.settings import Settings, load_settings
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


def test_head_has_its_own_row_and_no_other_drafters(tmp_path: Path) -> None:
    save_random_head(tmp_path / "head", TARGET)
    settings = load_settings(target={"path": str(TARGET)}, draft={"path": str(tmp_path / "head")})
    with _with_small_draft(settings) as completed:
        assert completed is settings, "no smaller draft is cut from a head"
    rows = systems_for(settings)
    assert {"eagle3", "card"} <= rows.keys()
    assert not {"pard", "pard2", "cascade", "cacheback"} & rows.keys()
    assert {row.speculation["drafter"] for row in rows.values()} == {"eagle3"}


def test_other_drafts_have_no_rows_of_heads() -> None:
    assert not {"eagle3", "pard2", "pard"} & systems_for(Settings()).keys()
