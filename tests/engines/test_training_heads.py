"""A head is trained by the passes that it makes while it serves, and what is written can be
served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from real_pair import TARGET
from safetensors.torch import load_file
from small_heads import HEADS, OPTIONS, save_target

from card.settings import load_settings
from card.speculation.drafters.heads.eagle3 import Eagle3
from card.speculation.drafters.heads.loading import load_head
from training.errors import TrainingError
from training.heads.command import begin
from training.heads.eagle3 import unrolled
from training.heads.recipe import HeadRecipe

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = HeadRecipe(
    ids=64, window=24, steps=3, held_out=2, evaluation_texts=2, lags=4, warm_up_steps=5,
    learning_rate=2e-3,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["eagle3", "eagle3_normed", "eagle3_before_fc"])
def test_passes_of_a_step_are_those_of_speculators(kind: str, tmp_path: Path) -> None:
    expected = load_file(HEADS / kind / "expected.safetensors")
    engine = load_head(HEADS / kind, save_target(tmp_path), OPTIONS)
    embedding = load_file(HEADS / kind / "model.safetensors")["embed_tokens.weight"]
    assert isinstance(engine._head, Eagle3)
    text, states = expected["text"], expected["states"].float()
    assert isinstance(engine._head, Eagle3)
    with torch.inference_mode():
        passes = unrolled(engine._head, embedding, text, states, 3)
        for step, (hidden, wanted, _) in enumerate(passes):
            assert wanted.tolist() == text[2 + step :].tolist()
            logits, rows = engine._head.logits(hidden), len(wanted)
            torch.testing.assert_close(
                logits, expected["logits"][step, :rows], atol=1e-4, rtol=1e-4
            )


def test_training_lowers_the_loss_and_goes_on_with_what_it_wrote(tmp_path: Path) -> None:
    texts = np.tile(np.arange(40, 52, dtype=np.uint16), (6, 3))
    training = begin("eagle3", TARGET, texts, RECIPE, tmp_path, None)
    before = training.evaluate()
    for _ in range(25):
        training.step(0.0)
    assert np.mean(training.losses[-5:]) < 0.7 * training.losses[0]
    after = training.evaluate()
    assert after.accepted[0] > before.accepted[0]
    assert len(after.accepted) == len(after.right) == 4
    again = begin("eagle3", TARGET, texts, RECIPE, tmp_path, None).evaluate()
    assert again.accepted == pytest.approx(after.accepted, abs=0.3)  # written in 16 bits
    assert len((tmp_path / "curve.jsonl").read_text().splitlines()) == 3
    with pytest.raises(TrainingError, match="a head of other ids"):
        begin("eagle3", TARGET, texts + 60, RECIPE, tmp_path, None)


def test_trained_head_is_served_as_it_was_trained(tmp_path: Path) -> None:
    texts = np.tile(np.arange(40, 52, dtype=np.uint16), (6, 3))
    training = begin("eagle3", TARGET, texts, RECIPE, tmp_path, None)
    training.evaluate()
    draft = tmp_path / "head"
    settings = load_settings(target={"path": str(TARGET)}, draft={"path": str(draft)})
    assert (settings.drafter, settings.draft.taps) == ("eagle3", (2, 3, 3))
    engine = load_head(draft, TARGET, OPTIONS)
    assert engine.ranked_ids.tolist()[:12] != []
    assert json.loads((draft / "config.json").read_text())["draft_vocab_size"] == 64
    for name, weight in training.kind.head.state_dict().items():
        torch.testing.assert_close(engine._head.state_dict()[name], weight.bfloat16().float())
