"""A smaller draft is some layers of another model, and a model that can be loaded."""

from __future__ import annotations

import json
from pathlib import Path

from real_pair import PAIR, pair_settings
from safetensors.torch import load_file
from typer.testing import CliRunner

from bench.drafts import with_small_draft
from card.engines.loading import load_engine
from card.serving.supervision.model_files import check_model_files
from training.cutting import app, cut


def test_the_layers_that_are_named_are_kept_in_their_order(tmp_path: Path) -> None:
    cut(PAIR / "target", tmp_path, [4, 1])
    whole, smaller = (load_file(path / "model.safetensors") for path in (PAIR / "target", tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 2
    name = "model.layers.{}.mlp.up_proj.weight"
    for place, layer in enumerate((4, 1)):
        assert smaller[name.format(place)].equal(whole[name.format(layer)])
    assert smaller["model.embed_tokens.weight"].equal(whole["model.embed_tokens.weight"])
    assert {key for key in smaller if ".layers." not in key} == {
        key for key in whole if ".layers." not in key
    }


def test_it_is_loaded_as_a_draft_beside_the_target_it_was_cut_from(tmp_path: Path) -> None:
    cut(PAIR / "target", tmp_path, [0])
    engine = load_engine(pair_settings(draft={"path": str(tmp_path)}), "draft")
    assert engine.vocabulary == 3072


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    arguments = [str(PAIR / "draft"), str(tmp_path / "made"), "--layer", "3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "has layers 0 to 0, not 3" in result.output
    assert not (tmp_path / "made").exists()


def test_the_benchmark_makes_a_smaller_draft_where_there_is_none(tmp_path: Path) -> None:
    missing = pair_settings(draft_small={"path": str(tmp_path / "none")})
    with with_small_draft(missing) as settings:
        made = settings.draft_small.path
        assert (made / "model.safetensors").exists()
    assert not made.exists()
    there = pair_settings(draft_small={"path": str(PAIR / "draft")})
    with with_small_draft(there) as settings:
        assert settings is there


def test_a_hierarchy_needs_its_smaller_draft_and_others_do_not(tmp_path: Path) -> None:
    missing = {"path": str(tmp_path / "none")}
    assert check_model_files(pair_settings(draft_small=missing)) is None
    wanted = pair_settings(draft_small=missing, speculation={"drafter": "hierarchy"})
    said = check_model_files(wanted)
    assert said is not None
    assert said.startswith(f"draft_small.path: {tmp_path}/none does not exist")
    assert said.endswith("scripts/cut_draft.py makes one of the draft")
