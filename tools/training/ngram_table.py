"""Make a table of what usually follows what (Cacheback, arXiv 2511.21699) from a corpus. The server
takes the one in its target's folder. It changes how fast a text comes and never the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from card.settings import REPOSITORY_ROOT
from card.settings.paths import own_table
from card.speculation.ngram_tables import MOST_FROZEN, table_of, write_table
from model_files import ModelFiles, ModelFilesError, model_at, model_files_of
from refusal import refuse


def main(
    corpus: Annotated[
        list[Path],
        typer.Argument(
            help="Texts like those that the target will write: files in UTF-8, or arrays of its "
            "ids, a row for each text (.npy)."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The table.", show_default="ngrams.npz in the target's folder"),
    ] = None,
    target: Annotated[
        Path, typer.Option(help="The model that defines the tokens.", show_default="models/target")
    ] = REPOSITORY_ROOT / "models/target",
) -> None:
    """Write the table."""
    model = model_at(target)
    written = output or own_table(model)
    try:
        files = model_files_of(model)
        vocabulary = int(files.config()["vocab_size"])
        texts = [text for file in corpus for text in texts_of(file, files, vocabulary)]
        table = table_of(texts, MOST_FROZEN)
        if not len(table):
            raise ValueError("the corpus repeats nothing: no context occurs twice")
        write_table(table, vocabulary, written)
    except (ModelFilesError, OSError, ValueError) as error:
        refuse(error)
    print(f"{written}: {len(table)} contexts of {sum(map(len, texts))} tokens")


def texts_of(file: Path, model: ModelFiles, vocabulary: int) -> list[Sequence[int]]:
    """The texts of one file as tokens. Raises `OSError`, and `ValueError` for what is no text."""
    if file.suffix != ".npy":
        try:
            return [model.tokenizer().encode(file.read_text(encoding="utf-8")).ids]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is no text in UTF-8: {error}") from error
    wanted = f"array [texts, tokens] of ids below {vocabulary}"
    try:
        rows = np.load(file, allow_pickle=False)
    except (EOFError, ValueError) as error:
        raise ValueError(f"{file} is no {wanted}: {error}") from error
    if not isinstance(rows, np.ndarray) or not _are_ids(rows, vocabulary):
        raise ValueError(f"{file} is no {wanted}")
    return list(rows)


def _are_ids(rows: NDArray[Any], vocabulary: int) -> bool:
    is_whole = rows.ndim == 2 and rows.dtype.kind in "iu"
    return is_whole and bool(((rows >= 0) & (rows < vocabulary)).all())


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(main)
    app(prog_name="scripts/ngrams")
