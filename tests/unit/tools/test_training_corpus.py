"""What becomes training text, and in which order a run sees it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from real_pair import pair_settings

from card.serving.model_files import check_model_files
from training.batches import corpus_batch
from training.corpus import HELD_OUT, TRAIN, gather, texts
from training.errors import TrainingError
from training.recipe import Sources
from training.tokenization import END_OF_TEXT, encode_corpus, load_tokens, train_tokenizer

SOURCES = Sources(smallest_bytes=20, largest_bytes=200)


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def source(number: int) -> str:
    return f"def function_{number}():\n    return {number}\n"


def gathered(folder: Path) -> set[str]:
    return {*texts(folder, TRAIN), *texts(folder, HELD_OUT)}


def test_only_sources_of_the_right_size_that_are_no_tests_are_taken_once(tmp_path: Path) -> None:
    roots = tmp_path / "roots"
    for name, text in {
        "a.py": source(1),
        "deep/b.py": source(2),
        "copy_of_a.py": "# A licence above does not make it another file.\n\n" + source(1),
        "short.py": "x = 1\n",
        "long.py": source(3) * 20,
        "test_c.py": source(4),
        "tests/d.py": source(5),
        "deep/test/e.py": source(6),
        "conftest.py": source(7),
        "f.txt": source(8),
    }.items():
        write(roots, name, text)
    (roots / "latin.py").write_bytes(b"name = '\xe9'  # not UTF-8, and long enough\n")

    found = gather([roots], tmp_path / "corpus", SOURCES)

    assert gathered(tmp_path / "corpus") == {source(1), source(2)}
    assert found.train_documents + found.held_out_documents == 2
    assert json.loads((tmp_path / "corpus" / "corpus.json").read_text())["characters"] == len(
        source(1) + source(2)
    )


def test_the_same_sources_give_the_same_corpus_from_any_folder(tmp_path: Path) -> None:
    for number in range(60):
        write(tmp_path / "one", f"m{number}.py", source(number))
        write(tmp_path / "other", f"p{number % 7}/n{99 - number}.py", source(number))
    corpora = {}
    for name in ("one", "other"):
        gather([tmp_path / name], tmp_path / f"{name}_corpus", SOURCES)
        corpora[name] = [
            list(texts(tmp_path / f"{name}_corpus", part)) for part in (TRAIN, HELD_OUT)
        ]
    assert corpora["one"] == corpora["other"]
    train, held_out = corpora["one"]
    assert held_out
    assert not set(train) & set(held_out)


def test_an_unusable_source_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="nowhere"):
        gather([tmp_path / "nowhere"], tmp_path / "corpus", SOURCES)
    with pytest.raises(TrainingError, match="at least two"):
        gather([tmp_path], tmp_path / "corpus", SOURCES)


def test_every_document_survives_the_tokenizer_and_ends_its_tokens(tmp_path: Path) -> None:
    documents = [source(1), 'text = "ünïcode\t☃"\n\n\n    x = 1\r\n']
    tokenizer = train_tokenizer(documents, vocabulary=300)
    count = encode_corpus(tokenizer, documents, tmp_path / "tokens.npy")
    tokens = np.asarray(load_tokens(tmp_path / "tokens.npy"))
    ends = np.flatnonzero(tokens == END_OF_TEXT)

    assert len(tokens) == count
    assert ends[-1] == count - 1
    pieces = np.split(tokens, ends + 1)[:-1]
    assert [tokenizer.decode(piece.tolist()) for piece in pieces] == documents


def test_a_pass_over_the_corpus_sees_every_window_once_and_the_next_in_another_order() -> None:
    tokens = np.arange(10 * 8 + 8 + 1, dtype=np.uint16)  # ten windows and room to shift them
    batches = [corpus_batch(tokens, step, batch=5, context=8, seed=1) for step in range(4)]
    laps = [np.concatenate(batches[0:2])[:, 0], np.concatenate(batches[2:4])[:, 0]]

    for lap in laps:
        assert np.array_equal(np.diff(np.sort(lap)), np.full(9, 8))
    assert not np.array_equal(np.argsort(laps[0]), np.argsort(laps[1]))
    assert all(np.array_equal(np.diff(row), np.ones(8)) for row in batches[0])
    assert np.array_equal(batches[3], corpus_batch(tokens, 3, batch=5, context=8, seed=1))


def test_a_hierarchy_needs_its_smaller_draft_and_others_do_not(tmp_path: Path) -> None:
    missing = {"path": str(tmp_path / "none")}
    assert check_model_files(pair_settings(draft_small=missing)) is None
    wanted = pair_settings(draft_small=missing, speculation={"drafter": "hierarchy"})
    said = check_model_files(wanted)
    assert said is not None
    assert said.startswith(f"draft_small.path: {tmp_path}/none does not exist")
    assert said.endswith("scripts/cut_draft.py makes one of the draft")
