"""Tables from a corpus, on disk and in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of
from real_pair import PAIR

from card.cache import NO_SALT, SALT_BYTES, SlotRequest
from card.engines.vocabulary import vocabulary_size
from card.settings import REPOSITORY_ROOT, Settings
from card.speculation.ngram import FollowerTable
from card.speculation.ngram_file import NgramFileError, read_table, table_of, write_table
from card.speculation.ngram_memory import MOST_TABLES, NgramMemory

VOCABULARY = 24
TARGET = FakeModel(VOCABULARY)
SALTS = [bytes([number] * SALT_BYTES) for number in range(1, MOST_TABLES + 3)]


def test_a_corpus_gives_what_most_frequently_followed_what_occurred_again(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    write_table(table_of([[1, 2, 3, 1, 2, 4, 1, 2, 4], [1, 2]]), VOCABULARY, file)
    found = dict(read_table(file, VOCABULARY))
    assert found[(1, 2)] == (4, 3)
    assert found[(1,)] == (2,)
    assert (3,) not in found, "it occurred once"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        {"contexts": np.zeros((1, 5), np.int32)},
        {"contexts": [[-1, -1, -1, -1, 24]], "followers": [[1, -1, -1, -1]]},
        {"contexts": [[-1, -1, -1, -1, 1]], "followers": [[-1, -1, -1, -1]]},
        {"contexts": [[1]], "followers": [[1]]},
    ],
    ids=["empty", "garbage", "parts", "unknown id", "no follower", "shape"],
)
def test_a_file_that_is_no_table_of_this_vocabulary_is_refused(
    tmp_path: Path, content: bytes | dict[str, object]
) -> None:
    file = tmp_path / "table.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        arrays = {name: np.asarray(values, np.int32) for name, values in content.items()}
        np.savez(file, vocabulary=np.array(VOCABULARY), **arrays)
    with pytest.raises(NgramFileError, match=r"table\.npz"):
        read_table(file, VOCABULARY)


def test_a_table_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    write_table(FollowerTable.of([((1,), (2,))]), VOCABULARY, file)
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
