"""A table of followers as a file: made from a corpus once, frozen for whoever speculates by it.

An `.npz` file of NumPy holds three arrays of int32, in which -1 stands where nothing is:

contexts    [contexts, LONGEST_CONTEXT] tokens, the last one last
followers   [contexts, MOST_FOLLOWERS] what followed, the most frequent first
vocabulary  [] ids of the vocabulary that the tokens are of
"""

from __future__ import annotations

import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.speculation.ngram import (
    LONGEST_CONTEXT,
    MOST_CONTEXTS,
    MOST_FOLLOWERS,
    Context,
    FollowerTable,
)

_NOTHING = -1
_SEEN_AGAIN = 2
"""Times that a context must occur to be kept: what occurred once says little of other texts."""


class NgramFileError(ValueError):
    """The file holds no table for this vocabulary; the message says why."""


def table_of(texts: Iterable[Sequence[int]], most_contexts: int = MOST_CONTEXTS) -> FollowerTable:
    """The most frequent contexts of a corpus, and what most frequently followed each."""
    followers: defaultdict[Context, Counter[int]] = defaultdict(Counter)
    for tokens in texts:
        for at in range(1, len(tokens)):
            for size in range(1, min(LONGEST_CONTEXT, at) + 1):
                followers[tuple(tokens[at - size : at])][tokens[at]] += 1
    seen = {context: found.total() for context, found in followers.items()}
    kept = sorted(
        (context for context in seen if seen[context] >= _SEEN_AGAIN),
        key=lambda context: (-seen[context], context),
    )[:most_contexts]
    return FollowerTable.of(
        (context, tuple(token for token, _ in followers[context].most_common(MOST_FOLLOWERS)))
        for context in kept
    )


def write_table(table: FollowerTable, vocabulary: int, file: Path) -> None:
    """Raises `OSError`."""
    rows = list(table)
    contexts = np.full((len(rows), LONGEST_CONTEXT), _NOTHING, np.int32)
    followers = np.full((len(rows), MOST_FOLLOWERS), _NOTHING, np.int32)
    for at, (context, found) in enumerate(rows):
        contexts[at, LONGEST_CONTEXT - len(context) :] = context
        followers[at, : len(found)] = found
    with file.open("wb") as written:
        np.savez_compressed(
            written,
            contexts=contexts,
            followers=followers,
            vocabulary=np.array(vocabulary, np.int32),
        )


def read_table(file: Path, vocabulary: int) -> FollowerTable:
    """Raises `NgramFileError`."""
    try:
        with np.load(file, allow_pickle=False) as held:
            contexts, followers = held["contexts"], held["followers"]
            size = int(held["vocabulary"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise NgramFileError(f"{file} is no table of n-grams: {error}") from error
    if size != vocabulary:
        raise NgramFileError(
            f"{file} is of a vocabulary of {size} ids, and the target has {vocabulary}; make one "
            "for this target: scripts/ngrams"
        )
    if not (
        _is_sound(contexts, LONGEST_CONTEXT, vocabulary)
        and _is_sound(followers, MOST_FOLLOWERS, vocabulary)
        and len(contexts) == len(followers) <= MOST_CONTEXTS
    ):
        raise NgramFileError(f"{file} holds other arrays than a table of n-grams")
    return FollowerTable.of(
        (
            tuple(token for token in context if token != _NOTHING),
            tuple(token for token in found if token != _NOTHING),
        )
        for context, found in zip(contexts.tolist(), followers.tolist(), strict=True)
    )


def _is_sound(rows: NDArray[np.int32], width: int, vocabulary: int) -> bool:
    """Whether these are rows of tokens, each with one or more."""
    return bool(
        rows.dtype == np.int32
        and rows.ndim == 2
        and rows.shape[1] == width
        and ((rows >= _NOTHING) & (rows < vocabulary)).all()
        and (rows != _NOTHING).any(axis=1).all()
    )
