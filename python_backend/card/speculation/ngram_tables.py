"""Tables of n-grams: the tokens that followed the last few tokens of a text at earlier places.

Cacheback (arXiv 2511.21699) keeps tables of followers in the order of their last use. Here a
follower is one token, and a context has 1 to 5 tokens. The longest context that a table knows
answers.

A frozen table is made from a corpus once. Its arrays take a tenth of the memory of Python's tables
and need no work after reading. NumPy's `.npz` file holds them:

keys        [contexts] uint64 ascending, `keys_of` each context
followers   [contexts, MOST_FOLLOWERS] int32, most frequent first; -1: there is none
vocabulary  [] number of ids in the tokens' vocabulary
"""

from __future__ import annotations

import math
import zipfile
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines import EngineError

LONGEST_CONTEXT = 5
"""Most tokens of a context; a shorter context answers if the table lacks the longer ones."""

MOST_FOLLOWERS = 4
"""Most followers of one context, as in the code of the paper's authors."""

MOST_CONTEXTS = 1 << 17
"""Contexts of one table, about 40 MB: those of a text of 26,000 tokens."""

Context = tuple[int, ...]
Answer = tuple[int, tuple[int, ...]]
"""Length of the longest known context, and its followers, likeliest first; 0 and () if the table
knows none."""


class Followers(Protocol):
    """What followed contexts."""

    def longest(self, end: Sequence[Context]) -> Answer:
        """The answer of the longest known context.

        end  every context at the end of a text, longest first
        """


class FollowerTable:
    """The latest followers of contexts. A full table drops the least recently used context."""

    def __init__(self, most_contexts: int = MOST_CONTEXTS) -> None:
        self._most = most_contexts
        self._rows: OrderedDict[Context, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Context, tuple[int, ...]]]:
        """Every context with its followers, least recently used first."""
        return iter(self._rows.items())

    def add(self, end: Sequence[Context], token: int) -> None:
        """Store that `token` followed these contexts."""
        rows = self._rows
        for context in end:
            row = rows.get(context)
            if row is None:
                rows[context] = (token,)
                continue
            if row[0] != token:
                others = [follower for follower in row if follower != token]
                rows[context] = (token, *others[: MOST_FOLLOWERS - 1])
            rows.move_to_end(context)
        while len(rows) > self._most:
            rows.popitem(last=False)

    def longest(self, end: Sequence[Context]) -> Answer:
        """The latest follower comes first."""
        rows = self._rows
        if rows:
            for context in end:
                if (row := rows.get(context)) is not None:
                    return len(context), row
        return 0, ()


_NOTHING = -1
_REMEMBERED = 1024
"""Number of cached answers."""
_PAGE_BITS = 16
"""First bits of a key, which select the page to search. Keys are spread evenly, so a page of a full
table has about eight keys."""


class FrozenTable:
    """Followers of contexts, most frequent first; implements `Followers`. Contexts with the
    same key count as one, which costs a wrong proposal.

    keys, followers  see above
    """

    def __init__(self, keys: NDArray[np.uint64], followers: NDArray[np.int32]) -> None:
        self.keys = keys
        self.followers = followers
        self._ascending = keys.data  # a search of few keys is faster outside NumPy
        first = np.arange(1 << _PAGE_BITS, dtype=np.uint64) << np.uint64(64 - _PAGE_BITS)
        self._pages = np.append(np.searchsorted(keys, first), len(keys)).data
        # A proposed context is looked up again when the text reaches it.
        self._longest = lru_cache(_REMEMBERED)(self._search)

    def __len__(self) -> int:
        return len(self.keys)

    def longest(self, end: Sequence[Context]) -> Answer:
        return self._longest(end[0]) if end else (0, ())

    def _search(self, context: Context) -> Answer:
        # The end of a frequent context is at least as frequent. So if the table lacks a context, it
        # lacks all longer ones.
        length, place = 0, -1
        for key in keys_of(context):
            page = key >> (64 - _PAGE_BITS)
            stop = self._pages[page + 1]
            at = bisect_left(self._ascending, key, self._pages[page], stop)
            if at == stop or self._ascending[at] != key:
                break
            length, place = length + 1, at
        if not length:
            return 0, ()
        row = self.followers[place].tolist()
        return length, tuple([token for token in row if token != _NOTHING])


def keys_of(context: Context) -> Iterator[int]:
    """Keys of the context's last token, its last two tokens, and so on up to the whole context."""
    key = 0
    for token in reversed(context):
        key = ((key ^ (token + 1)) * _FACTOR) & _BITS
        key ^= key >> 32
        yield key


MOST_FROZEN = 1 << 19
"""Most contexts of a file, about 12 MB."""

_HEADER_BYTES = 1 << 12
"""Most bytes of an array's header."""
_MOST_BYTES = {
    "keys.npy": MOST_FROZEN * 8 + _HEADER_BYTES,
    "followers.npy": MOST_FROZEN * MOST_FOLLOWERS * 4 + _HEADER_BYTES,
    "vocabulary.npy": 8 + _HEADER_BYTES,
}
"""Most bytes of each array, unpacked."""
_SEEN_AGAIN = 2
"""Least occurrences of a kept context; one occurrence says little about other texts."""
_FACTOR, _BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1
"""Constants of a multiplicative hash (Knuth, The Art of Computer Programming, 6.4)."""


class NgramFileError(EngineError):
    """The file of `speculation.ngram_table` holds no table for this vocabulary; the message says
    why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"speculation.ngram_table: {why}")


def table_of(texts: Iterable[Sequence[int]], most_contexts: int = MOST_FROZEN) -> FrozenTable:
    """The most frequent contexts of a corpus, with the most frequent followers of each."""
    arrays = [np.zeros(0, np.int64), *(np.asarray(text, np.int64) for text in texts)]
    found = [_counted(arrays, length) for length in range(1, LONGEST_CONTEXT + 1)]
    keys, tokens, counts, seen = (np.concatenate(column) for column in zip(*found, strict=True))
    begins = np.flatnonzero(_differs(keys))
    least = max(_SEEN_AGAIN, _least_kept(seen[begins], most_contexts))
    kept = seen >= least
    keys, tokens, counts = keys[kept], tokens[kept], counts[kept]
    order = np.lexsort((tokens, -counts, keys))
    keys, tokens = keys[order], tokens[order]
    begins = np.flatnonzero(_differs(keys))
    rank = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    followers = np.full((len(begins), MOST_FOLLOWERS), _NOTHING, np.int32)
    row, ranked = np.cumsum(_differs(keys)) - 1, rank < MOST_FOLLOWERS
    followers[row[ranked], rank[ranked]] = tokens[ranked]
    return FrozenTable(keys[begins], followers)


def _counted(texts: Sequence[NDArray[np.int64]], length: int) -> tuple[NDArray[np.generic], ...]:
    """Contexts of this length: key, follower, count of the follower and count of the context;
    sorted by key."""
    keys = np.concatenate([_keys(text, length) for text in texts])
    tokens = np.concatenate([text[length:] for text in texts])
    order = np.lexsort((tokens, keys))
    keys, tokens = keys[order], tokens[order]
    begins = np.flatnonzero(_differs(keys) | _differs(tokens))
    counts = np.diff(np.append(begins, len(keys)))
    keys, tokens = keys[begins], tokens[begins]
    contexts = np.flatnonzero(_differs(keys))
    pairs = np.diff(np.append(contexts, len(keys)))
    seen = np.repeat(np.add.reduceat(counts, contexts), pairs) if len(contexts) else counts
    return keys, tokens, counts, seen


def _keys(text: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    """`keys_of` every context of this length that a token follows."""
    places = max(0, len(text) - length)
    keys = np.zeros(places, np.uint64)
    for back in range(length):
        begin = length - 1 - back
        keys ^= (text[begin : begin + places] + 1).astype(np.uint64)
        keys *= np.uint64(_FACTOR)
        keys ^= keys >> np.uint64(32)
    return keys


def _differs(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Whether each value differs from the value before it."""
    return np.append(True, values[1:] != values[:-1]) if len(values) else np.zeros(0, bool)


def _least_kept(seen: NDArray[np.int64], most: int) -> int:
    """The least count of a context at which no more than `most` contexts remain."""
    if len(seen) <= most:
        return 0
    return int(np.sort(seen)[len(seen) - most - 1]) + 1


def write_table(table: FrozenTable, vocabulary: int, file: Path) -> None:
    """Raises `OSError`."""
    with file.open("wb") as written:
        np.savez_compressed(
            written,
            keys=table.keys,
            followers=table.followers,
            vocabulary=np.array(vocabulary, np.int32),
        )


def table_of_setting(file: Path | str | None, vocabulary: int) -> FrozenTable | None:
    """The table of the setting; None: it names no file. Raises `NgramFileError`."""
    return read_table(file, vocabulary) if isinstance(file, Path) else None


def read_table(file: Path, vocabulary: int) -> FrozenTable:
    """Raises `NgramFileError`."""
    try:
        _check_sizes(file)
        with np.load(file, allow_pickle=False) as held:
            # Full names: a member "keys" would differ from the checked member "keys.npy".
            keys, followers, size = (held[name] for name in _MOST_BYTES)
    except Exception as error:  # NumPy, zipfile and zlib share no narrower class
        raise NgramFileError(f"{file} is no table of n-grams: {error}") from error
    if size.shape != () or size != vocabulary:
        raise NgramFileError(
            f"{file} is of a vocabulary of {size} ids, and the target has {vocabulary}; make one "
            "for this target: scripts/ngrams"
        )
    if not _is_sound(keys, followers, vocabulary):
        raise NgramFileError(f"{file} holds other arrays than a table of n-grams")
    return FrozenTable(keys, followers)


def _check_sizes(file: Path) -> None:
    """Check the sizes in the headers before unpacking. Raises `ValueError`, and the errors of
    `zipfile`."""
    if (size := file.stat().st_size) > sum(_MOST_BYTES.values()):
        raise ValueError(f"it has {size} bytes; allowed: at most {sum(_MOST_BYTES.values())}")
    with zipfile.ZipFile(file) as archive:
        for name, most in _MOST_BYTES.items():
            member = archive.getinfo(name)
            if member.file_size > most:
                raise ValueError(
                    f"{name} unpacks to {member.file_size} bytes; allowed: at most {most}"
                )
            with archive.open(member) as content:
                shape = _shape(content)
            if len(shape) > 2 or math.prod(shape) > MOST_FROZEN * MOST_FOLLOWERS:
                raise ValueError(f"{name} has the shape {shape}")


def _shape(content: IO[bytes]) -> tuple[int, ...]:
    """The shape in the header of an array."""
    if np.lib.format.read_magic(content) != (1, 0):  # type: ignore[no-untyped-call]
        raise ValueError("an array has another version than 1.0")
    shape: tuple[int, ...]
    shape, _, _ = np.lib.format.read_array_header_1_0(content)  # type: ignore[no-untyped-call]
    return shape


def _is_sound(keys: NDArray[np.uint64], followers: NDArray[np.int32], vocabulary: int) -> bool:
    """Whether the keys ascend and each has at least one follower."""
    return bool(
        keys.dtype == np.uint64
        and followers.dtype == np.int32
        and keys.ndim == 1
        and followers.shape == (len(keys), MOST_FOLLOWERS)
        and len(keys) <= MOST_FROZEN
        and (keys[1:] > keys[:-1]).all()
        and ((followers >= _NOTHING) & (followers < vocabulary)).all()
        and (followers[:, 0] != _NOTHING).all()
    )
