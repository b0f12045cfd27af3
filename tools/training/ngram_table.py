"""Make a table of what usually follows what (Cacheback, arXiv 2511.21699) from a corpus, for
`speculation.ngram_table`. It changes how fast a text comes and never the text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from card.settings import REPOSITORY_ROOT
from card.speculation.ngram import MOST_CONTEXTS
from card.speculation.ngram_file import table_of, write_table
from model_files import ModelFilesError, model_at, model_files_of


def main(
    corpus: Annotated[
        list[Path], typer.Argument(help="Texts in UTF-8 like those that the target will write.")
    ],
    output: Annotated[Path, typer.Option(help="The table, an .npz file.")],
    target: Annotated[
        Path, typer.Option(help="The model whose tokens they are.", show_default="models/target")
    ] = REPOSITORY_ROOT / "models/target",
    contexts: Annotated[
        int, typer.Option(help="How many contexts to keep.", min=1, max=MOST_CONTEXTS)
    ] = MOST_CONTEXTS,
) -> None:
    """Write the table."""
    try:
        files = model_files_of(model_at(target))
        vocabulary, tokenizer = int(files.config()["vocab_size"]), files.tokenizer()
        texts = [tokenizer.encode(file.read_text(encoding="utf-8")).ids for file in corpus]
        table = table_of(texts, contexts)
        if not len(table):
            raise ValueError("the corpus repeats nothing: no context occurs twice")
        write_table(table, vocabulary, output)
    except (ModelFilesError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    print(f"{output}: {len(table)} contexts of {sum(map(len, texts))} tokens")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(main)
    app()
