"""What a settings file or a variable of the release before says is still understood."""

from __future__ import annotations

import pytest
from settings_files import Write

from card.settings import SettingsError, load_settings
from card.settings.renamed import RENAMED
from card.settings.schema import whole

pytestmark = pytest.mark.usefixtures("no_overrides")

FORMER = "speculation: {lookahead: 3, gamma: 5}\nserving: {findings: known}\n"
PRESENT = (
    "speculation: {ngram_tokens: 3, num_draft_tokens: 5}\nserving: {calibration_cache: known}\n"
)


def test_a_file_may_say_former_names(write: Write) -> None:
    former = load_settings(write(FORMER))
    assert former == load_settings(write(PRESENT))
    assert former != load_settings(write(""))


def test_every_renamed_field_is_one_and_its_former_name_is_none() -> None:
    leaves = {leaf.place for leaf in whole().leaves()}
    for former, present in RENAMED.items():
        assert (former[0], present) in leaves
        assert former not in leaves


def test_a_variable_may_say_a_former_name_and_is_named_where_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    monkeypatch.setenv("CARD_SPECULATION__GAMMA", "7")
    assert load_settings().speculation.num_draft_tokens == 7
    monkeypatch.setenv("CARD_SPECULATION__GAMMA", "700")
    with pytest.raises(SettingsError, match=r"CARD_SPECULATION__GAMMA.*num_draft_tokens"):
        load_settings()
    monkeypatch.setenv("CARD_SPECULATION__GAMMA", "7")
    with pytest.raises(SettingsError, match=r"speculation\.gamma.*speculation\.num_draft_tokens"):
        load_settings(write(PRESENT))
