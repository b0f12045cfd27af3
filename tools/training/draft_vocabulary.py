"""Which ids a draft is to rank: the most frequent ones of the target's own texts.

FR-Spec (Zhao et al., arXiv 2502.14856) keeps a quarter of a large vocabulary so. It changes how
fast a text comes and never the text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from model_files import ModelFilesError, model_files_of
from refusal import refuse

NAME = "draft_vocabulary.json"
"""The file in the draft's folder that `card.engines.draft_vocabulary` reads."""


def write_draft_vocabulary(
    texts: NDArray[np.integer[Any]], vocabulary: int, share: float, folder: Path
) -> None:
    """List the most frequent ids of `texts`, such a share of the vocabulary; with 1 write none."""
    file = folder / NAME
    if share == 1:
        file.unlink(missing_ok=True)
        return
    counts = np.bincount(texts.reshape(-1), minlength=vocabulary)
    often = np.argsort(-counts, kind="stable")[: max(1, round(share * vocabulary))]
    file.write_text(json.dumps({"ids": np.sort(often).tolist()}) + "\n", "utf-8")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
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
        refuse(error)
    listed = min(ids, size)
    counts = np.sort(np.bincount(found, minlength=size))[::-1]
    share = counts[:listed].sum() / counts.sum()
    print(f"{draft / NAME}: {listed} of {size} ids, {share:.1%} of these texts' tokens")
