"""N-gram proposals: of a text, of a corpus, and of what the target rejected (Ouroboros)."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections import Counter, defaultdict
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from one_process import OneProcess, autoregressive, request_of, settings_of
from real_pair import PAIR

from card.cache import NO_SALT, ROOT, SALT_BYTES, Candidates, SlotRequest
from card.engines.vocabulary import vocabulary_size
from card.settings import REPOSITORY_ROOT, Settings
from card.speculation.ngram_tables import (
    LONGEST_CONTEXT,
    MOST_FOLLOWERS,
    NgramFileError,
    read_table,
    table_of,
    write_table,
)
from card.speculation.sources.ngram import MOST_TABLES, NgramMemory, NgramProposer
from model_files import model_files_of
from training.ngram_table import texts_of

texts = st.lists(st.integers(0, 3), max_size=30)


def naive_followers(text: list[int], context: list[int]) -> list[int]:
    """What followed the longest end of `context` that occurs in `text` and is followed, the latest
    first."""
    for size in range(min(LONGEST_CONTEXT, len(context)), 0, -1):
        tail = context[-size:]
        places = range(len(text) - 1, size - 1, -1)
        found = dict.fromkeys(text[at] for at in places if text[at - size : at] == tail)
        if found:
            return list(found)[:MOST_FOLLOWERS]
    return []


def paths_of(found: Candidates) -> list[list[int]]:
    """Tokens from the root to every node."""
    paths: list[list[int]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        paths.append([*(paths[parent] if parent != ROOT else []), token])
    return paths


@given(
    texts,
    st.lists(st.integers(0, 3), max_size=7),
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_every_node_of_a_trie_followed_its_context_and_is_no_likelier_than_what_is_above(
    text: list[int], behind: list[int], limit: int, branches: int, piece: int
) -> None:
    proposer = NgramProposer()
    for at in range(0, len(text), piece):
        proposer.extend(text[at : at + piece])
    found = proposer.candidates(behind, limit, branches)
    paths = paths_of(found)
    for path, parent, chance in zip(paths, found.parents, found.chances, strict=True):
        assert path[-1] in naive_followers(text, [*text, *behind, *path[:-1]])
        assert 0 < chance <= (1.0 if parent == ROOT else found.chances[parent])
    assert len(set(map(tuple, paths))) == len(paths) <= limit
    leaves = set(range(len(paths))) - set(found.parents)
    assert len(leaves) <= branches
    assert found.is_chain or branches > 1
    assert bool(limit and naive_followers(text, [*text, *behind])) == bool(paths)


VOCABULARY = 24
TARGET = FakeModel(VOCABULARY)
SALTS = [bytes([number] * SALT_BYTES) for number in range(1, MOST_TABLES + 3)]


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=4), st.integers(1, 40))
def test_a_table_says_what_counting_would(texts: list[list[int]], most: int) -> None:
    followers: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text in texts:
        for at in range(1, len(text)):
            for size in range(1, min(LONGEST_CONTEXT, at) + 1):
                followers[tuple(text[at - size : at])][text[at]] += 1
    table = table_of(texts, most)
    assert len(table) <= most
    seen = {context: found.total() for context, found in followers.items()}
    known = [context for context in seen if table.longest([context])[0] == len(context)]
    assert len(known) == len(table)
    assert all(seen[context] > 1 for context in known)
    for context in known:
        row = table.longest([context])[1]
        counts = [followers[context][token] for token in row]
        best = sorted(followers[context].values(), reverse=True)[:MOST_FOLLOWERS]
        assert counts == best, "the most frequent first"
    if len(known) < sum(times > 1 for times in seen.values()):
        left = max(times for context, times in seen.items() if context not in known)
        assert left <= min((seen[context] for context in known), default=left)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        {"keys": [1]},
        {"keys": [1], "followers": [[24, -1, -1, -1]]},
        {"keys": [1], "followers": [[-1, -1, -1, -1]]},
        {"keys": [2, 1], "followers": [[1, -1, -1, -1]] * 2},
        {"keys": [1], "followers": [[1]]},
    ],
    ids=["empty", "garbage", "parts", "unknown id", "no follower", "order", "shape"],
)
def test_a_file_that_is_no_table_of_this_vocabulary_is_refused(
    tmp_path: Path, content: bytes | dict[str, object]
) -> None:
    file = tmp_path / "table.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        kinds = {"keys": np.uint64, "followers": np.int32}
        arrays = {name: np.asarray(values, kinds[name]) for name, values in content.items()}
        np.savez(file, vocabulary=np.array(VOCABULARY), **arrays)
    with pytest.raises(NgramFileError, match=r"table\.npz"):
        read_table(file, VOCABULARY)


def array_bytes(array: NDArray[Any]) -> bytes:
    content = BytesIO()
    np.save(content, array)
    return content.getvalue()


def array_header(shape: tuple[int, ...]) -> bytes:
    content = BytesIO()
    described = {"descr": "<u8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, described)  # type: ignore[no-untyped-call]
    return content.getvalue()


UNPACKED = 64 << 20
"""Bytes of an array that few bytes of a file say."""


@pytest.mark.parametrize(
    "members",
    [
        {"keys.npy": array_header((UNPACKED // 8,)) + bytes(UNPACKED)},
        {"keys.npy": array_header((UNPACKED // 8,))},
        {"keys.npy": array_header((1 << 50, 1 << 50))},
        {"followers.npy": bytes(UNPACKED)},
        {"keys": bytes(UNPACKED)},
    ],
    ids=["zeros", "shape alone", "overflow", "no array", "beside the array"],
)
def test_a_table_that_unpacks_to_more_than_its_bound_is_not_unpacked(
    tmp_path: Path, members: dict[str, bytes]
) -> None:
    file = tmp_path / "table.npz"
    sound = {
        "keys.npy": array_bytes(np.ones(1, np.uint64)),
        "followers.npy": array_bytes(np.array([[1, 2, -1, -1]], np.int32)),
        "vocabulary.npy": array_bytes(np.array(VOCABULARY, np.int32)),
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (sound | members).items():
            archive.writestr(name, content)
    tracemalloc.start()
    try:
        if "keys" in members:
            assert len(read_table(file, VOCABULARY)) == 1
        else:
            with pytest.raises(NgramFileError, match=r"table\.npz is no table of n-grams"):
                read_table(file, VOCABULARY)
        assert tracemalloc.get_traced_memory()[1] < UNPACKED // 4
    finally:
        tracemalloc.stop()


def test_a_file_with_any_damaged_byte_is_refused_or_read(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    write_table(table_of([[1, 2, 3] * 8]), VOCABULARY, file)
    sound = file.read_bytes()
    refused = 0
    for at in range(0, len(sound), 3):
        damaged = bytearray(sound)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        try:
            read_table(file, VOCABULARY)
        except NgramFileError:
            refused += 1
    assert refused > len(sound) // 6


def test_a_table_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    write_table(table_of([[1, 2, 1, 2]]), VOCABULARY, file)
    with pytest.raises(NgramFileError, match="24 ids, and the target has 25"):
        read_table(file, VOCABULARY + 1)


def test_ngrams_when_texts_share_a_salt_are_theirs_alone() -> None:
    first, second, *others = SALTS
    memory = NgramMemory(shares=True)
    memory.proposer(first).extend([1, 2, 3])
    assert memory.proposer(first).candidates([1], 2).tokens == [2, 3]
    assert memory.proposer(second).candidates([1], 2).tokens == []
    memory.proposer(NO_SALT).extend([4, 5])
    assert memory.proposer(NO_SALT).candidates([4], 1).tokens == [], "they share nothing"
    for salt in others:
        memory.proposer(salt)
    assert memory.proposer(first).candidates([1], 2).tokens == [], "the first is forgotten"
    closed = NgramMemory()
    closed.proposer(first).extend([1, 2])
    assert closed.proposer(first).candidates([1], 1).tokens == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_second_text_with_a_salt_is_proposed_from_the_first(shared: bool) -> None:
    settings = settings_of(drafter="ngram", ngram_tokens=6, shared_ngrams=shared)
    request = request_of([1, 2, 3], 30)
    accepted = _accepted(settings, [(request, SALTS[0]), (request, SALTS[0])])
    assert (accepted[1] > 20) is shared


def test_a_frozen_table_of_the_very_text_gives_it_in_few_passes(tmp_path: Path) -> None:
    request = request_of([1, 2, 3], 30)
    text = [1, 2, 3, *autoregressive(TARGET, request)]
    file = tmp_path / "table.npz"
    write_table(table_of([text, text]), VOCABULARY, file)
    settings = settings_of(drafter="ngram", ngram_tokens=6, ngram_table=file)
    assert _accepted(settings, [(request, NO_SALT)])[0] > 20


def _accepted(settings: Settings, requests: list[tuple[SlotRequest, bytes]]) -> list[int]:
    """Candidates that were accepted in each of these texts, decoded one after the other."""
    found = []
    target = FakeEngine(TARGET, tree=False)
    with OneProcess(target, FakeEngine(TARGET, tree=True), settings) as both:
        for request, salt in requests:
            asked = replace(request, salt=salt)
            stream = both.open(asked)
            assert both.run([stream]) == [autoregressive(TARGET, asked)]
            found.append(stream.counters.accepted)
            both.close([stream])
    return found


def test_the_command_makes_a_table_of_the_targets_tokens(tmp_path: Path) -> None:
    corpus, output = tmp_path / "corpus.txt", tmp_path / "table.npz"
    corpus.write_text("def add(a, b):\n    return a + b\n" * 3, encoding="utf-8")
    command = ["-m", "training.ngram_table", str(corpus)]
    options = [f"--output={output}", f"--target={PAIR / 'target'}"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY_ROOT / "tools")}
    subprocess.run([sys.executable, *command, *options], env=environment, check=True, timeout=240)
    vocabulary = vocabulary_size(PAIR / "target")
    assert len(read_table(output, vocabulary)) > 10


def _saved(*, archive: bool = False) -> bytes:
    """Ids, one of which is none. The first byte of an array begins no text."""
    written = BytesIO()
    if archive:
        np.savez(written, ids=[[3, 1]])
    else:
        np.save(written, [[3, -1]])
    return written.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("text.txt", _saved(), "text in UTF-8"),
        ("ids.npy", _saved(), "of ids"),
        ("ids.npy", b"", "of ids"),
        ("ids.npy", _saved()[:-1], "of ids"),
        ("ids.npy", _saved(archive=True), "of ids"),
    ],
    ids=["array", "negative", "empty", "cut", "archive"],
)
def test_the_command_names_the_file_that_holds_no_text(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} is no .*{why}"):
        texts_of(file, model_files_of(PAIR / "target"), 10)


def test_a_phrase_is_proposed_behind_the_text_that_it_was_supposed_to_follow() -> None:
    proposer = NgramProposer()
    proposer.extend([1, 9])
    proposer.suppose([3, 4])
    assert proposer.candidates([], 2).tokens == [3, 4]
    proposer.extend([7])
    assert proposer.candidates([], 2).tokens == []
    assert sorted(proposer.candidates([9], 2, branches=2).tokens) == [3, 7]
