"""Tune a draft so that it makes a block of tokens in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from training.compute import compute_of
from training.errors import TrainingError
from training.parallel.files import free_ids, read_draft, read_texts, write_draft
from training.parallel.fitting import Tuning
from training.parallel.recipe import ParallelRecipe
from training.recipe import recipe_of
from training.terminal import bar, console, told


def parallel(
    draft: Annotated[Path, typer.Argument(help="Hugging Face directory of the draft.")],
    texts: Annotated[
        Path,
        typer.Argument(help="Texts that the target wrote: .npy, integers, a row for each text."),
    ],
    output: Annotated[
        Path, typer.Option(help="Folder of the tuned draft (`draft`), the state and the curve.")
    ] = Path("build/parallel"),
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of training in all.")] = 60,
    start: Annotated[
        Path | None,
        typer.Option(help="Weights to begin with (.safetensors), instead of the draft's own."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="JSON that overrides fields of `tools/training/parallel/recipe.py`."),
    ] = None,
    mask_id: Annotated[
        list[int] | None,
        typer.Option(
            help="Ids for the masks, one for each place behind the next token. Default: ids that "
            "no text contains, special tokens first."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share a step.")] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Tune a draft for blocks in one pass (PARD). Resumes where a former run in OUTPUT stopped."""
    with told():
        torch.set_num_threads(threads)
        chosen = recipe_of(ParallelRecipe, recipe)
        compute = compute_of(device)
        found = read_texts(texts, max(chosen.window, chosen.evaluation_window))
        if len(found) <= chosen.held_out + chosen.windows:
            raise TrainingError(
                f"{texts} holds {len(found)} texts; held_out ({chosen.held_out}) and windows "
                f"({chosen.windows}) of the recipe need more"
            )
        masks = chosen.block - 1
        ids = mask_id or free_ids(draft, found, masks)
        if len(ids) != masks:
            raise TrainingError(f"--mask-id: {masks} ids are needed, {len(ids)} are named")
        tuned = read_draft(draft, masks, start).to(compute.device)
        teacher = read_draft(draft, masks).to(compute.device)
        tuning = Tuning(tuned, teacher, found, chosen, compute, output, threads)
        before = tuning.evaluate_teacher()
        console.print(f"before: {before.step_by_step:.3f} tokens of a block accepted step by step")
        if not tuning.progress.step:
            tuning.evaluate()
        with bar("parallel") as show:
            tuning.run(minutes * 60, show)
        after = tuning.evaluate()
        write_draft(tuning.draft, ids, draft, output / "draft")
        console.print(
            f"after: {after.one_pass:.3f} in one pass, {after.step_by_step:.3f} step by step; "
            f"by place {' '.join(f'{share:.2f}' for share in after.by_place)}\n"
            f"the draft is in {output / 'draft'}, the curve in {output / 'curve.jsonl'}"
        )
