"""A smaller draft is some layers of a model, and stands beside the target as any draft does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from real_pair import PAIR, pair_settings
from safetensors.torch import load_file
from typer.testing import CliRunner

from card.loading import load_engine
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
    beside = pair_settings(draft={"path": str(tmp_path)})  # the target that it was cut from
    assert load_engine(beside, "draft").vocabulary == 3072


def test_what_cannot_be_cut_is_refused_and_overwrites_no_model(tmp_path: Path) -> None:
    """Nor the one that it is cut from."""
    made, draft = tmp_path / "made", tmp_path / "draft"
    result = CliRunner().invoke(app, [str(PAIR / "draft"), str(made), "--layer", "3"])
    assert result.exit_code == 2
    assert "has layers 0 to 0, not 3" in result.output
    assert not made.exists()
    shutil.copytree(PAIR / "draft", draft)
    before = {file.name: file.read_bytes() for file in draft.iterdir()}
    with pytest.raises(ValueError, match="draft holds something already"):
        cut(draft, draft, [0])
    assert {file.name: file.read_bytes() for file in draft.iterdir()} == before
