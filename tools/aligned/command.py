"""Make a random pair of real shape that agrees at a chosen rate, to time speculation with.

The draft is the target's first layers and head; the target's later layers contribute so little
that the two agree as often as asked. Compute and memory traffic are real, the text is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from aligned.agreement import Texts
from aligned.making import AlignmentError, make_pair
from aligned.shapes import SHAPES
from card.settings import REPOSITORY_ROOT

Preset = Literal["tiny", "1b-8b", "3b-32b"]
WRONG = 2

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def make(
    output: Annotated[Path, typer.Argument(help="Folder for `target`, `draft` and pair.json.")],
    preset: Annotated[Preset, typer.Option(help="Shapes of the pair.")] = "1b-8b",
    agreement: Annotated[
        float, typer.Option(min=0.05, max=0.99, help="Share of tokens that both choose.")
    ] = 0.8,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option()] = "bfloat16",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    texts: Annotated[int, typer.Option(min=1, help="Texts written to measure agreement.")] = 16,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 64,
    tokenizer: Annotated[
        Path, typer.Option(help="Folder whose tokenizer.json is extended to the vocabulary.")
    ] = REPOSITORY_ROOT / "models" / "draft",
) -> None:
    """Write a pair; takes about a minute on a GPU, many on a processor."""
    console = Console()
    disable_progress_bar()
    if device != "cpu" and not torch.cuda.is_available():
        _refuse(f"--device {device}: no CUDA device is here; allowed: cpu")
    if output.is_dir() and any(output.iterdir()):
        _refuse(f"{output} holds something already: name another folder, or empty it")
    if not (tokenizer / "tokenizer.json").is_file():
        _refuse(f"--tokenizer {tokenizer}: holds no tokenizer.json")
    shape = SHAPES[preset]
    console.print(
        f"{preset}: a pass reads {shape.read_weights(shape.layers) / 1e9:.2f} billion weights of "
        f"the target, {shape.read_weights(shape.draft_layers) / 1e9:.2f} of the draft",
        highlight=False,
    )
    try:
        found = make_pair(
            shape,
            agreement,
            output,
            tokenizer,
            seed=seed,
            dtype=getattr(torch, dtype),
            device=torch.device(device),
            texts=Texts(texts, tokens),
            on_trial=lambda scale, reached: console.print(
                f"scale {scale:.5f}: agreement {reached:.3f}", highlight=False
            ),
        )
    except AlignmentError as error:
        _refuse(str(error))
    console.print(
        f"{output}: agreement {found.agreement:.3f} (asked {found.asked:g}), "
        f"{found.held_out:.3f} on other texts",
        highlight=False,
    )


def _refuse(reason: str) -> None:
    Console(stderr=True).print(f"error: {reason}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(WRONG)
