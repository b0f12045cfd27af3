"""What settings take from the files of target and draft: context, masks, hidden states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_pair import TARGET
from settings_files import Write, refusal
from small_heads import HEADS

from card.drafting.drafters import draft_config
from card.serving.geometry import pool_geometry
from card.settings import Settings, SettingsError, load_settings

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


def settings_of(head: Path, **sections: Any) -> Settings:
    draft_section = {"path": str(head), **sections.pop("draft", {})}
    return load_settings(target={"path": str(TARGET)}, draft=draft_section, **sections)


def test_drafter_and_taps_are_the_heads_when_the_settings_name_none() -> None:
    settings = settings_of(HEADS / "eagle3", cache={"state_tokens": 64})
    assert (settings.drafter, settings.draft.taps) == ("eagle3", (1, 2, 4))
    geometry = pool_geometry(settings)
    assert (geometry.state_tokens, geometry.state_numbers) == (64, 3 * 192)


def test_blocks_are_the_heads_when_it_has_a_mask() -> None:
    settings = settings_of(HEADS / "peagle")
    found = draft_config(settings)
    assert (settings.drafter, found.mask_ids, found.block) == ("peagle", (63,), 4)
    assert found.growth == "lattice"


def test_taps_are_eagles_when_the_head_names_none(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert settings_of(tmp_path).draft.taps == (2, 3, 3)  # of six layers
    assert settings_of(tmp_path, draft={"taps": [0, 2, -1]}).draft.taps == (0, 2, -1)


def test_pool_holds_no_states_when_the_draft_reads_none() -> None:
    assert pool_geometry(load_settings()).state_numbers == 0
    alone = settings_of(HEADS / "eagle3", speculation={"drafter": "ngram"})
    assert pool_geometry(alone).state_numbers == 0


@pytest.mark.parametrize(
    ("config", "sections", "message"),
    [
        (
            {"speculators_model_type": "mtp"},
            {},
            "kind 'mtp' is not read; allowed: eagle3, peagle, pard2",
        ),
        ({"speculators_model_type": "eagle3"}, {}, "transformer_layer_config is missing"),
        ({"speculators_model_type": "peagle", "transformer_layer_config": {}}, {}, "mask_token_id"),
        ({"fc_norm": 1}, {}, "fc_norm is 1; allowed: true, false"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, {}, "layer_ids is 3; allowed: a list"),
        ({}, {"speculation": {"drafter": "tree"}}, "drafter is tree, but the draft"),
        ({}, {"draft": {"taps": [1]}}, "draft.taps names 1 hidden states; the draft .* reads 3"),
        ({}, {"draft": {"device": "cuda"}, "engine": "torch"}, "draft.device: cpu"),
        ({"architectures": []}, {"speculation": {"drafter": "eagle3"}}, "is no head that reads"),
    ],
)
def test_load_refuses_by_name_when_settings_and_head_disagree(
    config: dict[str, Any], sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    said = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"} | config
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(SettingsError, match=message):
        settings_of(tmp_path, **sections)


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
