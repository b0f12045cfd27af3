"""A draft's masks, and what the settings make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from card.drafting.drafters import draft_config
from card.settings import SettingsError, load_settings


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def named(draft: Path, **config: Any) -> None:
    (draft / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("config", "masks", "block"),
    [
        ({"pard_token": 128020}, (128020,), 12),
        ({"pard_tokens": [5, 6, 7]}, (5, 6, 7), 4),
    ],
)
def test_draft_that_names_masks_makes_blocks(
    draft: Path, config: dict[str, Any], masks: tuple[int, ...], block: int
) -> None:
    named(draft, **config)
    settings = load_settings(draft={"path": str(draft)})
    found = draft_config(settings)
    assert (settings.drafter, found.mask_ids, found.block) == ("parallel", masks, block)


def test_settings_may_name_masks_block_and_drafter(draft: Path) -> None:
    settings = load_settings(draft={"path": str(draft), "mask_ids": [9]}, speculation={"block": 5})
    found = draft_config(settings)
    assert (settings.drafter, found.mask_ids, found.block) == ("parallel", (9,), 5)
    named(draft, pard_token=9)
    settings = load_settings(draft={"path": str(draft)}, speculation={"drafter": "tree"})
    assert (settings.drafter, draft_config(settings).mask_ids) == ("tree", ())


def test_draft_without_masks_is_used_step_by_step(draft: Path) -> None:
    settings = load_settings(draft={"path": str(draft)})
    assert (settings.drafter, draft_config(settings).block) == ("tree", 1)


@pytest.mark.parametrize("value", [-1, "<mask>", [], [3, None], True])
def test_wrong_masks_are_refused_by_name(draft: Path, value: Any) -> None:
    named(draft, pard_token=value)
    with pytest.raises(SettingsError, match=r"config.json: pard_token is .*; allowed: an id"):
        load_settings(draft={"path": str(draft)})


def test_blocks_without_a_mask_are_refused(draft: Path) -> None:
    with pytest.raises(SettingsError, match=r"names no masks .* set draft.mask_ids"):
        load_settings(draft={"path": str(draft)}, speculation={"drafter": "parallel"})
