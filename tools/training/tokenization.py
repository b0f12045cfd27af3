"""The byte-level BPE tokenizer of a pair, and the corpus as one long row of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

Tokens = npt.NDArray[np.uint16]

END_OF_TEXT = 0
"""Ends a document and begins a text."""

_END_OF_TEXT, _PAD = "<|endoftext|>", "<|pad|>"
_WORDS = r"\n[ ]*|[ ]?\w+|[ ]?[^\s\w]+|\s+"
_DOCUMENTS_AT_ONCE = 256


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn a byte-level BPE of at most ``vocabulary`` entries.

    A newline takes the indentation that follows it, so that code costs few tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_END_OF_TEXT, _PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` as Hugging Face expects them."""
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_END_OF_TEXT,
        eos_token=_END_OF_TEXT,
        pad_token=_PAD,
    ).save_pretrained(folder)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a folder.

    Raises:
        FileNotFoundError: the folder has no ``tokenizer.json``.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: `all` makes it")
    return Tokenizer.from_file(str(path))


def encode_corpus(tokenizer: Tokenizer, texts: Iterable[str], path: Path) -> int:
    """Write the documents as one uint16 array [tokens], each ended by ``END_OF_TEXT``.

    Returns the number of tokens.
    """
    pieces: list[Tokens] = []
    for batch in _batches(texts):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            pieces.append(np.array([*encoding.ids, END_OF_TEXT], dtype=np.uint16))
    tokens = np.concatenate(pieces)
    np.save(path, tokens, allow_pickle=False)
    return len(tokens)


def load_tokens(path: Path) -> Tokens:
    """Map the uint16 array [tokens] of ``encode_corpus``.

    Raises:
        FileNotFoundError: the corpus was not encoded yet.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: `all` makes it")
    tokens: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    return tokens


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while batch := list(islice(remaining, _DOCUMENTS_AT_ONCE)):
        yield batch
