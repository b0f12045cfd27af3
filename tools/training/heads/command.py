"""Train a head that reads the target's hidden states."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import torch
import typer

from card.engines import EngineError
from card.engines.architecture import read_architecture
from training.compute import FLOAT32, Compute, compute_of
from training.errors import TrainingError
from training.heads.fitting import HeadTraining
from training.heads.kind import Setup
from training.heads.kinds import KINDS
from training.heads.recipe import HeadRecipe
from training.heads.states import TappedTarget
from training.parallel.files import Texts, read_texts
from training.recipe import recipe_of
from training.terminal import bar, console, told

KindName = Enum("KindName", {name: name for name in KINDS}, type=str)  # type: ignore[misc]


def heads(
    target: Annotated[Path, typer.Argument(help="Hugging Face directory, or GGUF file.")],
    texts: Annotated[
        Path,
        typer.Argument(help="Texts that the target wrote: .npy, integers, a row for each text."),
    ],
    kind: Annotated[KindName, typer.Option(help="What the head is.")] = KindName["eagle3"],
    draft: Annotated[
        Path | None,
        typer.Option(help="Draft that the head begins with: a draft with masks, for pard2."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder of the head (`head`) and of its curve.")
    ] = Path("build/head"),
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of training.")] = 60,
    recipe: Annotated[
        Path | None,
        typer.Option(help="JSON that overrides fields of the recipe in `tools/training/heads`."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a step.")] = 2,
) -> None:
    """Train a head; the target computes its states on the fly. Goes on with the head in OUTPUT, if
    there is one."""
    with told():
        torch.set_num_threads(threads)
        chosen = recipe_of(KINDS[kind.value].recipe, recipe)
        found = read_texts(texts, chosen.window)
        if len(found) <= chosen.held_out:
            raise TrainingError(
                f"{texts} holds {len(found)} texts; held_out ({chosen.held_out}) of the recipe "
                "needs more"
            )
        training = begin(kind.value, target, found, chosen, output, draft, compute_of("cpu"))
        if not (output / "curve.jsonl").is_file():
            training.evaluate()
        with bar("heads") as show:
            training.run(minutes * 60, show)
        after = training.evaluate()
        console.print(
            f"tokens accepted of {chosen.steps}, by lag: "
            f"{' '.join(f'{tokens:.2f}' for tokens in after.accepted)}\n"
            f"the head is in {output / 'head'}, the curve in {output / 'curve.jsonl'}"
        )


def begin(
    kind: str,
    target: Path,
    texts: Texts,
    recipe: HeadRecipe,
    output: Path,
    draft: Path | None = None,
    compute: Compute = FLOAT32,
) -> HeadTraining:
    """A training of a head of this kind for this target. Raises `TrainingError`."""
    try:
        layers = read_architecture(target).layers
    except EngineError as error:
        raise TrainingError(str(error)) from error
    tapped = TappedTarget(target, KINDS[kind].taps(layers), recipe.window, bf16=compute.bf16)
    made = KINDS[kind](Setup(tapped, texts, recipe, output / "head", draft))
    return HeadTraining(made, tapped, texts, recipe, output, compute)
