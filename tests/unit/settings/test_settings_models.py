"""What settings take from the files of target and draft: context, masks, hidden states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from settings_files import Write, refusal

from card.drafting.drafters import draft_config
from card.settings import SettingsError, load_settings

pytestmark = pytest.mark.usefixtures("no_overrides")

MISTRAL = {"model_type": "mistral", "max_position_embeddings": 8192, "sliding_window": 1024}


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """The sections of two models, of which the draft has 2,048 positions and the target 8,192."""
    _configure(tmp_path / "target", max_position_embeddings=8192)
    _configure(tmp_path / "draft", max_position_embeddings=2048)
    return "target: {path: target}\ndraft: {path: draft}\n"


def _configure(model: Path, **config: Any) -> None:
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))


def test_default_context_is_that_of_the_shorter_model(write: Write, pair: str) -> None:
    limits = load_settings(write(pair + "limits: {max_tokens: 300}\n")).limits
    assert (limits.context_tokens, limits.prompt_tokens, limits.max_tokens) == (2048, 2047, 300)


@pytest.mark.parametrize(
    ("device", "slides", "fits"),
    [
        ("cuda", {}, 1024),
        ("cuda", {"use_sliding_window": False}, 2048),
        ("cpu", {}, 2048),
    ],
)
def test_default_context_is_at_most_a_sliding_window_where_attention_does_not_slide(
    tmp_path: Path, write: Write, pair: str, device: str, slides: dict[str, bool], fits: int
) -> None:
    _configure(tmp_path / "target", **MISTRAL, **slides)
    on_device = pair.replace("path: target", f"path: target, device: {device}, engine: torch")
    assert load_settings(write(on_device)).limits.context_tokens == fits


def test_prompt_limit_above_the_models_positions_is_refused_by_name(
    write: Write, pair: str
) -> None:
    said = refusal(write(pair + "limits: {prompt_tokens: 2048}\n"))
    assert "limits.prompt_tokens must be below the 2048 positions " in said
    assert "(got 2048)" in said


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


@pytest.mark.parametrize("value", [-1, "<mask>", [], [3, None], True])
def test_wrong_masks_are_refused_by_name(draft: Path, value: Any) -> None:
    named(draft, pard_token=value)
    with pytest.raises(SettingsError, match=r"config.json: pard_token is .*; allowed: an id"):
        load_settings(draft={"path": str(draft)})


def test_blocks_without_a_mask_are_refused(draft: Path) -> None:
    with pytest.raises(SettingsError, match=r"names no masks .* set draft.mask_ids"):
        load_settings(draft={"path": str(draft)}, speculation={"drafter": "parallel"})
