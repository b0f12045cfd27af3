"""Tables from a corpus, on disk and in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from one_process import OneProcess, autoregressive, request_of, settings_of
from real_pair import PAIR

from card.cache import NO_SALT, SALT_BYTES, SlotRequest
from card.engines.vocabulary import vocabulary_size
from card.settings import REPOSITORY_ROOT, Settings
from card.speculation.ngram import LONGEST_CONTEXT, MOST_FOLLOWERS
from card.speculation.ngram_file import NgramFileError, read_table, table_of, write_table
from card.speculation.ngram_memory import MOST_TABLES, NgramMemory

VOCABULARY = 24
TARGET = FakeModel(VOCABULARY)
SALTS = [bytes([number] * SALT_BYTES) for number in range(1, MOST_TABLES + 3)]


def test_a_corpus_gives_what_most_frequently_followed_what_occurred_again(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    write_table(table_of([[1, 2, 3, 1, 2, 4, 1, 2, 4], [1, 2]]), VOCABULARY, file)
    table = read_table(file, VOCABULARY)
    assert table.longest([(7, 1, 2), (1, 2), (2,)]) == (2, (4, 3))
    assert table.longest([(1,)]) == (1, (2,))
    assert table.longest([(3,)]) == (0, ()), "it occurred once"


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


def test_a_table_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    write_table(table_of([[1, 2, 1, 2]]), VOCABULARY, file)
    with pytest.raises(NgramFileError, match="24 ids, and the target has 25"):
        read_table(file, VOCABULARY + 1)


def test_texts_with_one_salt_teach_each_other_and_nobody_else() -> None:
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
    settings = settings_of(drafter="ngram", lookahead=6, shared_ngrams=shared)
    request = request_of([1, 2, 3], 30)
    accepted = _accepted(settings, [(request, SALTS[0]), (request, SALTS[0])])
    assert (accepted[1] > 20) is shared


def test_a_frozen_table_of_the_very_text_gives_it_in_few_passes(tmp_path: Path) -> None:
    request = request_of([1, 2, 3], 30)
    text = [1, 2, 3, *autoregressive(TARGET, request)]
    file = tmp_path / "table.npz"
    write_table(table_of([text, text]), VOCABULARY, file)
    settings = settings_of(drafter="ngram", lookahead=6, ngram_table=file)
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
