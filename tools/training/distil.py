"""Distil a draft on texts of its target, so that both agree more often (DistillSpec, arXiv
2310.08461)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from pydantic import Field
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from training.compute import compute_of
from training.divergences import Divergence
from training.errors import TrainingError
from training.fitting import Training, fit
from training.parallel.files import Texts, read_texts
from training.parallel.layout import Batch
from training.recipe import recipe_of
from training.terminal import bar, console, told


class DistilRecipe(Training):
    """What a step reads. The texts of a batch are the target's, but for those that the draft writes
    behind the beginnings of such texts."""

    window: int = Field(default=512, ge=8, description="tokens of a text")
    prefix: int = Field(default=64, ge=1, description="tokens that the draft continues")
    draft_tokens: int = Field(default=128, ge=1, description="tokens that it writes")
    temperature: float = Field(default=1.0, gt=0, description="of both distributions")
    seed: int = Field(default=0, ge=0)


def distil(
    draft: Annotated[Path, typer.Argument(help="Hugging Face directory of the draft.")],
    target: Annotated[Path, typer.Argument(help="Hugging Face directory of the target.")],
    texts: Annotated[
        Path,
        typer.Argument(help="Texts that the target wrote: .npy, integers, a row for each text."),
    ],
    output: Annotated[Path, typer.Option(help="Folder of the new draft.")] = Path("build/draft"),
    divergence: Annotated[
        Divergence, typer.Option(help="What is lowered, from the target p to the draft q.")
    ] = Divergence.FORWARD_KL,
    on_policy: Annotated[
        float, typer.Option(min=0, max=1, help="Share of a batch that the draft itself writes.")
    ] = 0.0,
    recipe: Annotated[
        Path | None,
        typer.Option(help="JSON that overrides fields of the recipe (training/distil)."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Distil a draft on texts of its target. `./scripts/import_pair` measures how often both agree,
    before and after."""
    with told():
        chosen, compute = recipe_of(DistilRecipe, recipe), compute_of(device)
        if chosen.prefix >= chosen.window:
            raise TrainingError("the recipe's prefix must be smaller than its window")
        if output.resolve() == draft.resolve():
            raise TrainingError(f"--output is the draft's own folder {draft}: name another one")
        found = read_texts(texts, chosen.window)
        sizes = [_vocabulary(folder) for folder in (draft, target)]
        if sizes[0] != sizes[1]:
            raise TrainingError(
                f"{draft} has {sizes[0]} ids and {target} has {sizes[1]}: a pair must share one "
                "vocabulary"
            )
        student, teacher = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(compute.device)
            for folder in (draft, target)
        )
        own = round(on_policy * chosen.batch)
        generator = np.random.default_rng(chosen.seed)
        torch.manual_seed(chosen.seed)

        def loss_of_step(step: int) -> Tensor:
            batch = torch.from_numpy(_windows(found, chosen, generator)).to(compute.device)
            parts = []
            if own < chosen.batch:
                parts.append(_distance(teacher, student, batch[own:], divergence, chosen, 1))
            if own:
                written = _written(student, batch[:own, : chosen.prefix], chosen.draft_tokens)
                parts.append(
                    _distance(teacher, student, written, divergence, chosen, chosen.prefix)
                )
            return torch.cat([part.mean(dim=1) for part in parts]).mean()

        with bar("distil") as show:
            losses = fit(student, loss_of_step, chosen, compute, show)
        _write(student, draft, output)
        console.print(f"{output}: {len(losses)} steps, {divergence.value} {losses[-1]:.3f}")


def _vocabulary(folder: Path) -> int:
    """How many ids a model has. Raises `FileNotFoundError`."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no model: name a Hugging Face directory")
    return int(json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"])


def _windows(texts: Texts, recipe: DistilRecipe, generator: np.random.Generator) -> Batch:
    """Windows of random texts, int64 [batch, window]."""
    rows = generator.integers(len(texts), size=recipe.batch)
    starts = generator.integers(texts.shape[1] - recipe.window + 1, size=recipe.batch)
    places = starts[:, None] + np.arange(recipe.window)
    found: Batch = np.asarray(texts)[rows[:, None], places].astype(np.int64)
    return found


@torch.no_grad()
def _written(draft: PreTrainedModel, prefixes: Tensor, tokens: int) -> Tensor:
    """Prefixes, int64 [texts, prefix], with `tokens` that the draft samples behind each."""
    found: Tensor = draft.generate(
        prefixes,
        attention_mask=torch.ones_like(prefixes),
        do_sample=True,
        top_k=0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
    )
    return found


def _distance(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    texts: Tensor,
    divergence: Divergence,
    recipe: DistilRecipe,
    prefix: int,
) -> Tensor:
    """The divergence at each token behind the first `prefix`, float32 [texts, tokens]."""

    def log_chances(model: PreTrainedModel) -> Tensor:
        logits = model(input_ids=texts[:, :-1], use_cache=False).logits[:, prefix - 1 :]
        found: Tensor = (logits.float() / recipe.temperature).log_softmax(dim=-1)
        return found

    with torch.no_grad():
        wanted = log_chances(target)
    return divergence.between(wanted, log_chances(draft))


def _write(model: PreTrainedModel, source: Path, folder: Path) -> None:
    """Write the weights in bfloat16, beside copies of the draft's tokenizer and other files."""
    model.bfloat16().save_pretrained(folder)
    for file in source.iterdir():
        holds_weights = file.name.endswith((".safetensors", ".bin", ".index.json"))
        if file.is_file() and not holds_weights and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)
