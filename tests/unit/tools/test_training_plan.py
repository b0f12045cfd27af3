"""Recipes and output folders: what is refused, and what the figures mean."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from training.errors import TrainingError
from training.ranks import ideal_tokens_per_step
from training.recipe import Recipe, read_recipe
from training.workplace import claim

RECIPES = Path(__file__).parents[3] / "tools" / "training"


def test_ideal_tokens_per_step_counts_runs_of_agreement() -> None:
    # Three candidates a pass: 3 accepted and one more, 0 accepted, 1 accepted, then the rest.
    ranks = [np.array([0, 0, 0, 0, 5, 0, 2, 0, 0])]
    assert ideal_tokens_per_step(ranks, rows=4) == 9 / 4
    assert ideal_tokens_per_step(ranks, rows=1) == 1.0
    assert ideal_tokens_per_step([np.array([1, 1])], rows=16) == 1.0


def test_a_folder_that_holds_anything_else_is_never_taken_silently(tmp_path: Path) -> None:
    weights = tmp_path / "models" / "target" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"precious")
    with pytest.raises(TrainingError, match="--output"):
        claim(tmp_path / "models", Recipe())
    assert [file.name for file in (tmp_path / "models").iterdir()] == ["target"]
    assert weights.read_bytes() == b"precious"


def test_a_pair_of_another_recipe_is_not_continued(tmp_path: Path) -> None:
    place = claim(tmp_path / "pair", Recipe())
    place.undistilled.mkdir()
    assert claim(tmp_path / "pair", Recipe()) == place
    with pytest.raises(TrainingError, match="another recipe"):
        claim(tmp_path / "pair", Recipe(seed=1))
    assert place.undistilled.is_dir()


def test_a_recipe_overrides_some_fields_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"target_training": {"steps": 7, "peak_rate": 0.1}}))
    assert read_recipe(path).target_training.steps == 7
    assert read_recipe(path).target == Recipe().target
    gpu = read_recipe(RECIPES / "gpu.json")
    assert gpu.target_training.batch > Recipe().target_training.batch


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ({"vocabulary": 10}, "vocabulary"),
        ({"target": {"layers": 0, "hidden": 8}}, "target.layers"),
        ({"draft_training": {"steps": 1, "peak_rate": -1}}, "draft_training.peak_rate"),
        ({"colour": "red"}, "colour"),
        ({"context": 64}, "longest_prefix"),
        ({"context": 512, "positions": 511}, "positions"),
    ],
)
def test_a_bad_recipe_names_the_field(
    tmp_path: Path, written: dict[str, object], field: str
) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(written))
    with pytest.raises(TrainingError, match=field) as refused:
        read_recipe(path)
    assert "Value error" not in str(refused.value)
