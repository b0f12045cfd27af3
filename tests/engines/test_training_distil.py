"""A draft is distilled on texts of its target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from real_pair import DRAFT, TARGET
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from training.command import app
from training.divergences import Divergence

RECIPE = {
    "steps": 30, "batch": 4, "window": 24, "prefix": 8, "draft_tokens": 8, "warmup_steps": 0,
    "peak_rate": 4e-3,
}  # fmt: skip


def distil(folder: Path, draft: Path, *more: str) -> Result:
    texts, recipe = folder / "texts.npy", folder / "recipe.json"
    np.save(texts, np.random.default_rng(0).integers(2, 3000, (16, 32)).astype(np.uint16))
    recipe.write_text(json.dumps(RECIPE))
    files = [str(draft), str(TARGET), str(texts), "--output", str(folder / "made")]
    return CliRunner().invoke(app, ["distil", *files, "--recipe", str(recipe), *more])


def test_divergences_of_known_distributions_are_those_of_the_paper() -> None:
    p, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    found = {one.value: float(one.between(p, q)) for one in Divergence}
    assert found == pytest.approx(
        {"forward_kl": 0.14384, "reverse_kl": 0.13081, "jsd": 0.03382, "tvd": 0.25}, abs=1e-4
    )


@pytest.mark.parametrize("on_policy", ["0", "0.5", "1"])
def test_draft_when_distilled_comes_nearer_to_its_target_and_is_written_whole(
    tmp_path: Path, on_policy: str
) -> None:
    done = distil(tmp_path, DRAFT, "--on-policy", on_policy, "--divergence", "jsd")
    assert done.exit_code == 0, done.output
    made = tmp_path / "made"
    assert {file.name for file in DRAFT.iterdir()} <= {file.name for file in made.iterdir()}
    before, after = (load_file(folder / "model.safetensors") for folder in (DRAFT, made))
    assert before.keys() == after.keys()
    texts = torch.from_numpy(np.load(tmp_path / "texts.npy").astype(np.int64))
    first, target, last = (log_chances(folder, texts) for folder in (DRAFT, TARGET, made))
    distances = [float(Divergence.JSD.between(target, draft).mean()) for draft in (first, last)]
    assert distances[1] < 0.9 * distances[0]


@torch.inference_mode()
def log_chances(folder: Path, texts: Tensor) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found: Tensor = model(input_ids=texts).logits.log_softmax(dim=-1)
    return found


def test_distil_when_the_vocabularies_differ_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(DRAFT, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 3000}))
    refused = distil(tmp_path, other)
    assert refused.exit_code == 2
    assert "a pair must share one vocabulary" in refused.output
