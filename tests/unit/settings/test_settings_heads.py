"""A draft that reads the target's hidden states, and what the settings make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_pair import TARGET
from small_heads import HEADS

from card.drafting.drafters import draft_config
from card.serving.geometry import pool_geometry
from card.settings import Settings, SettingsError, load_settings


def settings_of(head: Path, **sections: Any) -> Settings:
    draft_section = {"path": str(head), **sections.pop("draft", {})}
    return load_settings(target={"path": str(TARGET)}, draft=draft_section, **sections)


def test_drafter_and_taps_are_the_heads_when_the_settings_name_none() -> None:
    settings = settings_of(HEADS / "eagle3", cache={"state_tokens": 64})
    assert (settings.drafter, settings.draft.taps) == ("eagle3", (1, 2, 4))
    geometry = pool_geometry(settings)
    assert (geometry.state_tokens, geometry.state_numbers) == (64, 3 * 192)


@pytest.mark.parametrize(
    ("head", "drafter", "block", "growth"),
    [
        ("peagle", "peagle", 4, "lattice"),
        ("dflash", "dflash", 3, "lattice"),
        ("dspark_gated", "dspark", 4, "best_first"),  # its serial head knows the tokens before
    ],
)
def test_blocks_are_the_heads_when_it_has_a_mask(
    head: str, drafter: str, block: int, growth: str
) -> None:
    settings = settings_of(HEADS / head)
    found = draft_config(settings)
    assert (settings.drafter, found.mask_ids, found.block) == (drafter, (63,), block)
    assert found.growth == growth


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
        (
            {"speculators_model_type": "dspark", "transformer_layer_config": {}, "block_size": 1},
            {},
            "block_size is 1; allowed: 2 to 32",
        ),
        (
            {"architectures": ["DFlashDraftModel"], "dflash_config": {"output_multiplier": 2}},
            {},
            "output_multiplier is 2; heads with this field are not read",
        ),
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
