"""A tiny pair from corpus to evaluation: what the training script promises about its results."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from bench.prompts import read_prompts
from card.engines.draft_vocabulary import read_draft_vocabulary
from card.sampling import gumbel
from training import stages
from training.agreement import follow
from training.architecture import build, load
from training.command import app
from training.compute import Compute
from training.corpus import HELD_OUT, gather
from training.decoding import Texts
from training.distillation import distance, write_draft_texts
from training.divergences import Divergence
from training.draft_vocabulary import write_draft_vocabulary
from training.errors import TrainingError
from training.recipe import Architecture, Distillation, Recipe, Sources, Training
from training.tokenization import END_OF_TEXT, load_tokenizer
from training.workplace import Workplace, claim

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = Compute(torch.device("cpu"), bf16=False)
STEPS = 6
RECIPE = Recipe(
    sources=Sources(smallest_bytes=50),
    vocabulary=400,
    context=24,
    positions=48,
    target=Architecture(layers=2, hidden=32, heads=2, kv_heads=1, intermediate=64),
    draft=Architecture(layers=1, hidden=16, heads=2, kv_heads=1, intermediate=32),
    target_training=Training(steps=STEPS, batch=4, peak_rate=5e-3, warmup_steps=2),
    draft_training=Training(steps=STEPS, batch=4, peak_rate=5e-3, warmup_steps=2),
    distillation=Distillation(
        texts=6, shortest_prefix=4, longest_prefix=8, generation_batch=4, own_share=0.5
    ),
    distillation_training=Training(steps=30, batch=4, peak_rate=1e-2, warmup_steps=2),
)


def brief(recipe: Recipe) -> Recipe:
    """The same, but of one step a stage."""
    stages = ("target_training", "draft_training", "distillation_training")
    changed = {name: getattr(recipe, name).model_copy(update={"steps": 1}) for name in stages}
    return recipe.model_copy(update=changed)


@dataclass(frozen=True)
class Pair:
    place: Workplace
    prompts: Path


def write_sources(folder: Path) -> None:
    for number in range(40):
        body = "\n".join(
            f"def add_{name}_{number}(left, right):\n    return left + right + {number}\n"
            for name in ("one", "two", "three")
        )
        (folder / f"module_{number}.py").write_text(body, "utf-8")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair's folder with corpus and tokenizer, to be copied."""
    folder = tmp_path_factory.mktemp("prepared")
    sources = folder / "sources"
    sources.mkdir()
    write_sources(sources)
    place = claim(folder / "pair", RECIPE)
    gather([sources], place.corpus, RECIPE.sources)
    stages.make_tokenizer(place, RECIPE)
    return place.root


def begun(prepared: Path, root: Path) -> Workplace:
    shutil.copytree(prepared, root)
    return claim(root, RECIPE)


@pytest.fixture(scope="module")
def pair(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    place = begun(prepared, folder / "pair")
    for role in ("target", "draft"):
        stages.train_model(place, RECIPE, role, CPU)
    stages.distil(place, RECIPE, CPU)
    prompts = folder / "prompts.jsonl"
    texts = ("def add", "def add_two_3(left, right):\n    return")
    lines = [{"id": number, "prompt": text} for number, text in enumerate(texts)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return Pair(place, prompts)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_written_directories_load_in_transformers(pair: Pair, role: str) -> None:
    folder = pair.place.model(role)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "def add_one_1(left, right):\n    return left\n"
    ids = tokenizer(text).input_ids

    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == END_OF_TEXT
    assert tokenizer.decode(ids) == text
    assert model(torch.tensor([ids])).logits.isfinite().all()
    assert not [file for file in folder.iterdir() if file.suffix in {".bin", ".pt", ".pkl"}]


def test_the_draft_ranks_the_most_frequent_half_of_the_vocabulary(pair: Pair) -> None:
    size = load_tokenizer(pair.place.tokenizer).get_vocab_size()
    texts = stages.own_texts(pair.place, RECIPE, CPU)
    ranked = read_draft_vocabulary(pair.place.model("draft"), size)
    assert ranked is not None
    assert len(ranked) == round(size / 2)
    counts = np.bincount(texts.reshape(-1), minlength=size)
    assert counts[ranked].min() >= np.delete(counts, ranked).max()
    write_draft_vocabulary(texts, size, 1.0, pair.place.model("draft"))
    assert read_draft_vocabulary(pair.place.model("draft"), size) is None
    write_draft_vocabulary(texts, size, 0.5, pair.place.model("draft"))


@pytest.fixture
def copied(pair: Pair, tmp_path: Path) -> Workplace:
    """A pair that a test may distil again."""
    place = Workplace(tmp_path / "pair")
    shutil.copytree(pair.place.root, place.root)
    return place


def distilling(**changes: object) -> Recipe:
    chosen = RECIPE.distillation.model_copy(update=changes)
    return RECIPE.model_copy(update={"distillation": chosen})


def test_a_distillation_begins_with_the_draft_that_was_trained_and_has_the_texts_of_its_seed(
    copied: Workplace,
) -> None:
    once, again = (stages.distil(copied, brief(RECIPE), CPU) for _ in range(2))
    assert once == again
    copied.recipe.write_text(brief(RECIPE).model_dump_json(indent=2) + "\n", "utf-8")
    options = ["--output", str(copied.root), "--recipe", str(copied.recipe), "--device", "cpu"]

    def distilled(*more: str) -> bytes:
        result = CliRunner().invoke(app, ["distil", *options, *more])
        assert result.exit_code == 0, result.output
        return (copied.model("draft") / "model.safetensors").read_bytes()

    assert distilled() == distilled("--seed", "0") != distilled("--seed", "5")


def test_a_target_trained_again_outdates_the_texts_it_wrote(prepared: Path, tmp_path: Path) -> None:
    place = begun(prepared, tmp_path / "pair")
    stages.train_model(place, brief(RECIPE), "target", CPU)
    stages.own_texts(place, RECIPE, CPU)
    assert place.own_texts.is_file()
    stages.train_model(place, brief(RECIPE), "target", CPU)
    assert not place.own_texts.exists()


def test_a_loss_that_is_no_number_stops_training(prepared: Path, tmp_path: Path) -> None:
    place = begun(prepared, tmp_path / "pair")
    training = RECIPE.target_training.model_copy(update={"peak_rate": float("inf")})
    recipe = RECIPE.model_copy(update={"target_training": training})
    with pytest.raises(TrainingError, match="peak_rate"):
        stages.train_model(place, recipe, "target", CPU)
    assert not place.model("target").exists()


def test_padded_cached_decoding_gives_the_logits_of_the_whole_text() -> None:
    model = build(RECIPE.target, vocabulary=400, positions=48, seed=1).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8.0 if weight.dim() > 1 else 1.0)  # attention that depends on positions
    prompts = [[0, 7, 9], [0, 5, 6, 7, 8, 9, 10, 11], [0]]
    texts = Texts(model, prompts, room=2)
    for step in range(3):
        for row, prompt in enumerate(prompts):
            whole = model(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(texts.logits[row], whole, rtol=1e-4, atol=1e-4)
        if step < 2:
            following = [17 + step, 23, 31]
            texts.append(torch.tensor(following))
            prompts = [[*p, token] for p, token in zip(prompts, following, strict=True)]


def formula(divergence: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """DistillSpec's definitions on probabilities [..., vocab], the target's first."""
    half = (p + q) / 2
    at_each_token = {
        Divergence.FORWARD_KL: p * torch.log(p / q),
        Divergence.REVERSE_KL: q * torch.log(q / p),
        Divergence.JSD: (p * torch.log(p / half) + q * torch.log(q / half)) / 2,
        Divergence.TVD: (p - q).abs() / 2,
    }
    return at_each_token[divergence].sum(dim=-1)


@pytest.mark.parametrize("divergence", Divergence)
def test_a_divergence_is_its_formula_over_the_counted_positions(divergence: Divergence) -> None:
    target, draft = (
        build(shape, vocabulary=400, positions=48, seed=2)
        for shape in (RECIPE.target, RECIPE.draft)
    )
    with torch.no_grad():
        for model in (target, draft):
            model.get_input_embeddings().weight.mul_(20.0)  # distributions that differ widely
    batch = torch.arange(50).reshape(2, 25)
    p, q = (model(batch[:, :-1]).logits.double().softmax(dim=-1) for model in (target, draft))
    for prefix in (1, 9):
        expected = formula(divergence, p, q)[:, prefix - 1 :].mean()
        measured = distance(target, draft, batch, divergence, prefix).double()
        torch.testing.assert_close(measured, expected, rtol=1e-5, atol=1e-7)
    p, q = p[0, :3], q[0, :3]
    torch.testing.assert_close(
        divergence.between(p.log(), q.log()), formula(divergence, p, q), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize(
    ("divergence", "on_policy"), list(zip(Divergence, (0.0, 0.5, 1.0, 0.5), strict=True))
)
def test_each_divergence_falls_on_each_mixture_of_texts(
    copied: Workplace, divergence: Divergence, on_policy: float
) -> None:
    changes = {"divergence": divergence, "on_policy_share": on_policy}
    losses = stages.distil(copied, distilling(**changes), CPU)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_the_drafts_texts_are_the_drafts(pair: Pair) -> None:
    draft = load(pair.place.model("draft"), CPU.device)
    tokens = np.load(pair.place.corpus / "train.npy")
    with torch.no_grad():
        draft.get_input_embeddings().weight.mul_(300.0)  # sampling is greedy now
    texts, prefix = write_draft_texts(draft, tokens, RECIPE.distillation, 3, 24, (1, 2))
    assert texts.shape == (3, 25)
    with torch.no_grad():
        choices = draft(torch.from_numpy(texts[:, :-1])).logits.argmax(dim=-1).numpy()
    assert (choices[:, prefix - 1 :] == texts[:, prefix:]).mean() > 0.9
    again, _ = write_draft_texts(draft, tokens, RECIPE.distillation, 3, 24, (1, 2))
    assert np.array_equal(again, texts)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_agreement_is_measured_on_the_targets_own_path_with_shared_noise(
    pair: Pair, temperature: float
) -> None:
    """Against the definition: no cache, no batch, no padding, a text at a time."""
    target, draft = (load(pair.place.model(role), CPU.device) for role in ("target", "draft"))
    read = read_prompts(pair.prompts, load_tokenizer(pair.place.model("target")))
    prompts = [[END_OF_TEXT, *prompt.tokens] for prompt in read]
    vocabulary = np.arange(target.config.vocab_size)
    measured = follow(target, draft, prompts, 10, temperature, seed=5)

    for number, (prompt, ranks) in enumerate(zip(prompts, measured, strict=True)):
        text = list(prompt)
        expected: list[int] = []
        while len(expected) < 10 and (not expected or text[-1] != END_OF_TEXT):
            scores = []
            for model in (target, draft):
                with torch.no_grad():
                    row = model(torch.tensor([text])).logits[0, -1].double().numpy()
                if temperature:
                    row = row / temperature + gumbel(5 + number, len(text), vocabulary)
                scores.append(row)
            token = int(scores[0].argmax())
            order = np.argsort(-scores[1], kind="stable")
            expected.append(int(np.flatnonzero(order == token)[0]))
            text.append(token)
        assert ranks.tolist() == expected


def test_evaluation_reports_every_figure_and_changes_nothing(pair: Pair) -> None:
    held_out = pair.place.corpus / HELD_OUT
    before = {file: file.stat().st_mtime_ns for file in pair.place.root.rglob("*")}
    target, draft = pair.place.model("target"), pair.place.model("draft")
    figures = stages.evaluate(target, draft, pair.prompts, held_out, CPU.device, max_tokens=8)
    assert {file: file.stat().st_mtime_ns for file in pair.place.root.rglob("*")} == before
    assert figures.prompts == 2
    assert figures.target_loss is not None
    assert figures.draft_loss is not None
    # Six steps are enough to know more than a uniform guess over the vocabulary.
    assert 0 < figures.target_loss < np.log(400)
    assert [row.temperature for row in figures.agreement] == [0.0, 0.8]
    assert figures.target_parameters > figures.draft_parameters


def test_another_draft_is_evaluated_beside_the_target(pair: Pair) -> None:
    """As the draft of before its distillation is; here the target, which agrees with itself."""
    root = pair.place.root
    options = ["--draft", str(root / "target"), "--prompts", str(pair.prompts), "--max-tokens", "8"]
    outcome = CliRunner().invoke(app, ["evaluate", str(root), *options, "--device", "cpu"])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("1.000  1.000  1.000") == 2
