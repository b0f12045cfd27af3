"""Tuning a draft for blocks in one pass: what a mask sees, what is written, and that it resumes."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from typer.testing import CliRunner

from training.command import app
from training.compute import Compute
from training.parallel.files import free_ids, read_draft, write_draft
from training.parallel.fitting import Tuning
from training.parallel.layout import choose_chains, masks_of_places
from training.parallel.recipe import ParallelRecipe

pytestmark = pytest.mark.usefixtures("one_thread")

DRAFT = Path(__file__).resolve().parents[1] / "pair" / "draft"
CPU = Compute(torch.device("cpu"), bf16=False)
MASKS = 3
RECIPE = ParallelRecipe(
    block=MASKS + 1,
    window=24,
    windows=2,
    anchors=8,
    held_rows=4,
    held_out=2,
    evaluation_window=24,
    evaluation_anchors=4,
    warmup_steps=1,
)


@pytest.fixture(scope="module")
def texts() -> NDArray[np.uint16]:
    """Texts that repeat: what is behind the next token can be learned."""
    random = np.random.default_rng(0)
    ids = json.loads((DRAFT / "draft_vocabulary.json").read_text())["ids"]
    tiled = [np.tile(random.choice(ids, 8), 4) for _ in range(12)]
    return np.array(tiled, np.uint16)


def tuning(folder: Path, texts: NDArray[np.uint16], recipe: ParallelRecipe = RECIPE) -> Tuning:
    draft, teacher = read_draft(DRAFT, MASKS), read_draft(DRAFT, MASKS)
    return Tuning(draft, teacher, texts, recipe, CPU, folder, workers=2)


def test_far_places_are_dropped_and_the_kept_ones_have_all_masks_before_them() -> None:
    counts = masks_of_places(40, 5, keep=0.7, least=0.3)
    assert counts == [40, 28, 20, 14, 12]
    likely = np.random.default_rng(1).random(80)
    chains = choose_chains(likely, counts, np.random.default_rng(2))
    reached = [set(chains.anchor[chains.place == place].tolist()) for place in range(1, 6)]
    assert [len(of) for of in reached] == counts
    assert all(later <= before for before, later in pairwise(reached))
    assert chains.wanted.max() < len(likely)


def test_chains_go_on_where_the_tokens_before_were_likely() -> None:
    likely = np.full(100, 1e-4)
    likely[50:] = 0.99
    chains = choose_chains(likely, [60, 15, 15], np.random.default_rng(0))
    assert (chains.anchor[chains.place == 3] >= 48).all()


def test_mask_sees_its_text_and_its_own_chain_alone(texts: NDArray[np.uint16]) -> None:
    """As while it serves: the text up to the anchor, then masks."""
    draft = read_draft(DRAFT, MASKS)
    with torch.no_grad():
        draft.masks.copy_(torch.randn(draft.masks.shape, generator=torch.manual_seed(0)))
    tokens = torch.from_numpy(texts[:2, :20].astype(np.int64))
    random = np.random.default_rng(3)
    chains = [choose_chains(random.random(20), [6, 4, 2], random) for _ in tokens]
    with torch.inference_mode():
        together = draft.hidden(tokens, chains)
        for text, of, rows in zip(tokens, chains, together, strict=True):
            for row, (anchor, place) in enumerate(zip(of.anchor, of.place, strict=True), 20):
                embedded = draft.model.get_input_embeddings()(text[None, : anchor + 1])
                alone = draft.model.base_model(
                    inputs_embeds=torch.cat([embedded, draft.masks[None, :place]], dim=1)
                ).last_hidden_state[0, -1]
                torch.testing.assert_close(rows[row], alone, rtol=1e-4, atol=1e-4)


def test_tuning_lowers_the_loss_and_keeps_embedding_and_head(
    texts: NDArray[np.uint16], tmp_path: Path
) -> None:
    recipe = RECIPE.model_copy(update={"peak_rate": 3e-3, "mask_rate": 1e-2})
    made = tuning(tmp_path, texts, recipe)
    embedding = made.draft.model.get_input_embeddings().weight.clone()
    for _ in range(40):
        made.step(0.0)
    losses = [masks for masks, _ in made.progress.losses]
    assert np.mean(losses[-8:]) < 0.9 * np.mean(losses[:8])
    assert made.draft.model.get_input_embeddings().weight.equal(embedding)


def test_resumed_tuning_makes_the_same_steps(texts: NDArray[np.uint16], tmp_path: Path) -> None:
    whole, begun = tuning(tmp_path / "whole", texts), tuning(tmp_path / "parts", texts)
    for made, steps in ((whole, 4), (begun, 2)):
        for _ in range(steps):
            made.step(0.1)
    begun.save()
    resumed = tuning(tmp_path / "parts", texts)
    for _ in range(2):
        resumed.step(0.1)
    assert resumed.progress.step == whole.progress.step == 4
    np.testing.assert_array_equal(resumed.progress.losses, whole.progress.losses)
    assert resumed.draft.masks.equal(whole.draft.masks)


def test_written_draft_names_its_masks_and_holds_their_vectors(
    texts: NDArray[np.uint16], tmp_path: Path
) -> None:
    draft = read_draft(DRAFT, MASKS)
    write_draft(draft, [7, 8, 9], DRAFT, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pard_tokens"] == [7, 8, 9]
    weights = load_file(tmp_path / "model.safetensors")
    before = load_file(DRAFT / "model.safetensors")
    assert weights.keys() == before.keys()
    embedding = "model.embed_tokens.weight"
    assert weights[embedding][[7, 8, 9]].equal(draft.masks.detach().bfloat16())
    weights[embedding][[7, 8, 9]] = before[embedding][[7, 8, 9]]
    assert all(weights[name].equal(before[name]) for name in before)


def test_command_tunes_resumes_and_refuses_what_it_cannot_do(
    texts: NDArray[np.uint16], tmp_path: Path
) -> None:
    file, recipe, made = tmp_path / "texts.npy", tmp_path / "recipe.json", tmp_path / "made"
    np.save(file, texts)
    recipe.write_text(RECIPE.model_dump_json())

    def run(*more: str) -> tuple[int, str]:
        options = ["--recipe", str(recipe), "--output", str(made), "--minutes", "0.02", *more]
        done = CliRunner().invoke(app, ["parallel", str(DRAFT), str(file), *options])
        return done.exit_code, done.output

    ids = [part for one in (7, 8, 9) for part in ("--mask-id", str(one))]
    assert run(*ids[:2]) == (2, "error: --mask-id: 3 ids are needed, 1 are named\n")
    code, said = run(*ids)
    assert (code, "in one pass" in said) == (0, True)
    assert json.loads((made / "draft/config.json").read_text())["pard_tokens"] == [7, 8, 9]
    curve = [json.loads(line) for line in (made / "curve.jsonl").read_text().splitlines()]
    assert curve[-1]["step"] > 0
    assert len(curve[-1]["by_place"]) == RECIPE.block
    recipe.write_text(RECIPE.model_copy(update={"seed": 5}).model_dump_json())
    code, said = run(*ids)
    assert (code, "begun with another recipe" in said) == (2, True)


def test_free_ids_are_used_by_nothing_and_special_ones_come_first(
    tmp_path: Path, texts: NDArray[np.uint16]
) -> None:
    shutil.copytree(DRAFT, tmp_path, dirs_exist_ok=True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    ranked = set(json.loads((tmp_path / "draft_vocabulary.json").read_text())["ids"])
    unranked = [one for one in range(10, 3000) if one not in ranked][:3]
    tokenizer["added_tokens"] = [
        {"id": one, "special": True, "content": f"<{one}>"} for one in [*unranked, min(ranked)]
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    used = texts.copy()
    used[0, 0] = unranked[0]
    assert free_ids(tmp_path, used, 2) == unranked[1:]
    (other,) = set(free_ids(tmp_path, used, 3)) - set(unranked[1:])
    assert other not in ranked
    assert other not in used
