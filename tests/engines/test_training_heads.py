"""A head is trained by the passes that it makes while it serves, and what is written can be
served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from real_pair import TARGET
from safetensors.torch import load_file
from small_heads import HEADS, OPTIONS, save_target

from bench.lag_blocks import Blocks, Written
from card.engines import Ranking, SequenceTokens
from card.settings import load_settings
from card.speculation.drafters.heads.block_engine import BlockEngine
from card.speculation.drafters.heads.eagle3 import Eagle3
from card.speculation.drafters.heads.loading import load_head
from training.errors import TrainingError
from training.heads.blocks import BlockTraining
from training.heads.command import begin
from training.heads.eagle3 import unrolled
from training.heads.fitting import HeadTraining
from training.heads.kinds import KINDS
from training.heads.pard2 import Pard2Recipe
from training.heads.peagle import PEagleRecipe
from training.heads.recipe import HeadRecipe
from training.parallel.files import read_draft, write_draft

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = HeadRecipe(
    ids=64, window=24, steps=3, held_out=2, evaluation_texts=2, lags=4, warm_up_steps=5,
    learning_rate=2e-3,
)  # fmt: skip

PEAGLE = PEagleRecipe(
    ids=64, window=24, steps=3, held_out=2, evaluation_texts=2, lags=4, warm_up_steps=5,
    learning_rate=2e-3, chains=8,
)  # fmt: skip
PARD2 = Pard2Recipe(
    window=24, steps=4, held_out=2, evaluation_texts=2, lags=4, warm_up_steps=5, windows=1,
    reads=1, anchors=8, most_late=4, text_rows=12, learning_rate=2e-3, projection_rate=2e-3,
    mask_rate=1e-2,
)  # fmt: skip


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft with masks that nothing has tuned yet."""
    source, folder = TARGET.parent / "draft", tmp_path_factory.mktemp("masked")
    draft = read_draft(source, masks=3)
    write_draft(draft, [900, 901, 902], source, folder)
    return folder


def learned(kind: str, folder: Path, masked: Path) -> HeadTraining:
    """A head that was trained a little, as it was written."""
    texts = np.tile(np.arange(40, 52, dtype=np.uint16), (6, 3))
    recipe = {"pard2": PARD2, "peagle": PEAGLE}.get(kind, RECIPE)
    training = begin(kind, TARGET, texts, recipe, folder, masked)
    for _ in range(25):
        training.step(0.0)
    training.evaluate()
    return begin(kind, TARGET, texts, recipe, folder, masked)


@pytest.mark.parametrize("kind", ["eagle3", "peagle", "pard2"])
def test_evaluation_drafts_what_the_head_drafts_while_it_serves(
    kind: str, tmp_path: Path, masked: Path
) -> None:
    """By lag, through the drafter and its engine."""
    training = learned(kind, tmp_path, masked)
    text = np.array([*range(40, 52), *range(40, 46), 70, *range(40, 45)])
    tokens, states = torch.from_numpy(text), training._target.states(text)
    with torch.inference_mode():
        found = training.kind.right(tokens, states, lags=4)
    settings = load_settings(target={"path": str(TARGET)}, draft={"path": str(tmp_path / "head")})
    blocks = Blocks(load_head(tmp_path / "head", TARGET, OPTIONS), settings, found.shape[2])
    bits = (states.numpy().view(np.uint32) >> 16).astype(np.uint16)
    written = Written(text.tolist(), 1, bits)
    assert found.any()
    for lag, rows in enumerate(found):
        for at, right in enumerate(rows):
            length = {"eagle3": 2 + at + lag, "peagle": 2 + 8 * at + lag}.get(kind, 5 + 8 * at)
            drafted = blocks._draft(written, length, lag)
            wanted = text[length : length + len(right)]
            assert (np.array(drafted) == wanted).tolist() == right.tolist()


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


@pytest.mark.parametrize("kind", ["dspark", "dflash", "specformer", "ctc"])
def test_blocks_are_served_as_they_were_trained(kind: str, tmp_path: Path) -> None:
    texts = np.tile(np.arange(40, 52, dtype=np.uint16), (6, 3))
    recipe = KINDS[kind].recipe(**RECIPE.model_dump() | {"steps": 4, "learning_rate": 4e-3})
    training = begin(kind, TARGET, texts, recipe, tmp_path, None)
    for _ in range(12):
        training.step(0.0)
    assert training.losses[-1] < training.losses[0]
    training.evaluate()
    kept = begin(kind, TARGET, texts, recipe, tmp_path, None).kind  # rounded to 16 bits
    assert isinstance(kept, BlockTraining)
    engine = load_head(tmp_path / "head", TARGET, OPTIONS)
    assert isinstance(engine, BlockEngine)
    text, states = training._read(texts[0, : recipe.window])
    bits = states.bfloat16().view(torch.int16).numpy().view(np.uint16)
    anchor, masks = 12, [engine._head.mask_id or 0] * 3
    for lag in (0, 2):
        with torch.inference_mode():
            drafted = kept._drafted(text, states, torch.tensor([anchor]), lag)[0]
        expected = engine.ranked_ids[drafted[drafted >= 0].numpy()].tolist()
        session = engine.open_session()
        engine.hear(session, 0, bits[: anchor - lag])
        places = int(min(4, engine.places(session, anchor + 1)))
        tokens = [*text[: anchor + 1].tolist(), *masks[: places - 1]]
        rows = SequenceTokens(session, tokens, logits=places, ranking=Ranking(1))
        assert engine.forward([rows])[0].best()[0][:, 0].tolist() == expected[:places]
        engine.close_session(session)
