#!/usr/bin/env python3
"""List the ids that a draft ranks: the most frequent ones of texts like those it will write.

A draft's head is most of what its pass reads where the vocabulary is large (FR-Spec, Zhao et al.,
arXiv 2502.14856). Ids that are not listed are never candidates, so the list changes how fast a text
comes and never the text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "scripts"), str(_ROOT / "python_backend")]

from model_files import ModelFilesError, model_files_of  # noqa: E402
from training.draft_vocabulary import NAME, write_draft_vocabulary  # noqa: E402


def main(
    draft: Annotated[Path, typer.Argument(help="The draft's folder; the list is written there.")],
    texts: Annotated[
        Path,
        typer.Argument(
            help="Texts of the target: a file in UTF-8, or an .npy array of its token ids."
        ),
    ],
    ids: Annotated[int, typer.Option(help="How many ids to list.", min=1)] = 8192,
) -> None:
    """Write draft_vocabulary.json beside a draft's weights."""
    try:
        files = model_files_of(draft)
        size = int(files.config()["vocab_size"])
        if texts.suffix == ".npy":
            found = np.load(texts, allow_pickle=False).reshape(-1).astype(np.int64)
        else:
            encoded = files.tokenizer().encode(texts.read_text(encoding="utf-8"))
            found = np.array(encoded.ids, np.int64)
        if not len(found) or found.min() < 0 or found.max() >= size:
            raise ValueError(f"{texts} holds no ids, or others than the draft's {size}")
        write_draft_vocabulary(found, size, min(1.0, ids / size), draft)
    except (ModelFilesError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    listed = min(ids, size)
    counts = np.sort(np.bincount(found, minlength=size))[::-1]
    share = counts[:listed].sum() / counts.sum()
    print(f"{draft / NAME}: {listed} of {size} ids, {share:.1%} of these texts' tokens")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(main)
    app()
