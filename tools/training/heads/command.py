"""Train a head that reads the target's hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.speculation.drafters.heads.formats import HeadConfig
from training.errors import TrainingError
from training.heads.files import config_of
from training.heads.fitting import HeadTraining
from training.heads.recipe import HeadRecipe
from training.heads.states import TappedTarget
from training.parallel.files import Texts, read_texts
from training.recipe_file import recipe_of
from training.terminal import bar, console, told


def heads(
    target: Annotated[Path, typer.Argument(help="Hugging Face directory, or GGUF file.")],
    texts: Annotated[
        Path, typer.Argument(help="Texts that the target wrote: .npy, integers [texts, tokens].")
    ],
    kind: Annotated[Literal["eagle3"], typer.Option(help="eagle3.")] = "eagle3",
    output: Annotated[
        Path, typer.Option(help="Folder of the head (`head`) and of its curve.")
    ] = Path("build/head"),
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of training.")] = 60,
    recipe: Annotated[
        Path | None,
        typer.Option(help="JSON that overrides fields of `tools/training/heads/recipe.py`."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a step.")] = 2,
    evaluate_every: Annotated[float, typer.Option(help="Seconds between evaluations.")] = 300,
) -> None:
    """Train an EAGLE-3 head; the target computes its states on the fly. Goes on with the head in
    OUTPUT, if there is one."""
    with told():
        torch.set_num_threads(threads)
        chosen = recipe_of(HeadRecipe, recipe)
        found = read_texts(texts, chosen.window)
        if len(found) <= chosen.held_out:
            raise TrainingError(
                f"{texts} holds {len(found)} texts; held_out ({chosen.held_out}) of the recipe "
                "needs more"
            )
        training = begin(target, found, chosen, output, kind)
        if not (output / "curve.jsonl").is_file():
            training.evaluate()
        with bar("heads") as show:
            training.run(minutes * 60, evaluate_every, show)
        after = training.evaluate()
        console.print(
            f"tokens accepted of a chain of {chosen.steps}, by lag: "
            f"{' '.join(f'{tokens:.2f}' for tokens in after.accepted)}\n"
            f"the head is in {output / 'head'}, the curve in {output / 'curve.jsonl'}"
        )


def begin(
    target: Path, texts: Texts, recipe: HeadRecipe, output: Path, kind: str = "eagle3"
) -> HeadTraining:
    """A training of a head for this target. Raises `TrainingError`."""
    try:
        taps = HeadConfig(kind, {}, None).taps(read_architecture(target).layers)
    except EngineError as error:
        raise TrainingError(str(error)) from error
    tapped = TappedTarget(target, taps, recipe.window)
    counts = np.bincount(np.asarray(texts).ravel(), minlength=tapped.architecture.vocabulary)
    most = np.argsort(-counts, kind="stable")[: recipe.ids]
    config = config_of(tapped.architecture, taps, len(most), recipe.steps)
    return HeadTraining(config, tapped, texts, np.sort(most), recipe, output)
