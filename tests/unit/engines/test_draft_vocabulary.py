"""The list of ids that a draft ranks is taken as it is meant, or refused by what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from card.engines import EngineError
from card.engines.draft_vocabulary import DRAFT_VOCABULARY, read_draft_vocabulary

VOCABULARY = 100


def test_without_a_list_all_ids_are_ranked(tmp_path: Path) -> None:
    assert read_draft_vocabulary(tmp_path, VOCABULARY) is None


def test_ids_are_taken_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / DRAFT_VOCABULARY).write_text('{"ids": [7, 99, 0, 7]}')
    ids = read_draft_vocabulary(tmp_path, VOCABULARY)
    assert ids is not None
    assert ids.tolist() == [0, 7, 99]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Invalid JSON"),
        (b'{"ids": [1, 2', "Invalid JSON"),
        (b"\xff", "Invalid JSON"),
        (b"[1, 2]", "object"),
        (b"{}", "ids"),
        (b'{"ids": []}', "ids"),
        (b'{"ids": [1, -1]}', "ids.1"),
        (b'{"ids": [1.5]}', "ids.0"),
        (b'{"ids": ["1"]}', "ids.0"),
        (b'{"ids": [1], "more": 2}', "more"),
        (b'{"ids": [100]}', "id 100 is none of the vocabulary's 100"),
        (b'{"ids": [1180591620717411303424]}', "is none of the vocabulary's 100"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / DRAFT_VOCABULARY
    file.write_bytes(content)
    with pytest.raises(EngineError) as error:
        read_draft_vocabulary(tmp_path, VOCABULARY)
    assert str(error.value).startswith(str(file))
    assert said in str(error.value)


def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / DRAFT_VOCABULARY).mkdir()
    with pytest.raises(EngineError, match="cannot be read"):
        read_draft_vocabulary(tmp_path, VOCABULARY)
