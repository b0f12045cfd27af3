"""A draft that means other tokens by the same ids is refused, and the first difference named;
padding, reserved and added tokens may differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_pair import DRAFT, TARGET

from card.engines import EngineError
from card.engines.draft_vocabulary import DRAFT_VOCABULARY, read_draft_vocabulary
from card.engines.vocabulary import SharedVocabulary, shared_vocabulary

BPE = {"a": 0, "b": 1, "ab": 2}


def model(directory: Path, vocab: Any = None, *, size: Any = 3, added: Any = None) -> Path:
    """A directory with the two files that name a vocabulary."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"vocab_size": size}))
    tokenizer: dict[str, Any] = {"model": {"vocab": BPE if vocab is None else vocab}}
    if added is not None:
        tokenizer["added_tokens"] = added
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def refusal(draft: Path, target: Path) -> str:
    with pytest.raises(EngineError) as caught:
        shared_vocabulary(draft, target)
    return str(caught.value)


def test_a_trained_pair_shares_a_vocabulary() -> None:
    found = shared_vocabulary(DRAFT, TARGET)
    assert found == SharedVocabulary(3072, 3072)
    assert found.is_whole
    assert found.note == ""


def test_added_tokens_count_wherever_they_are_listed(tmp_path: Path) -> None:
    draft = model(tmp_path / "draft", BPE | {"<end>": 3}, size=4)
    target = model(tmp_path / "target", size=4, added=[{"content": "<end>", "id": 3}])
    shared_vocabulary(draft, target)


@pytest.mark.parametrize(("draft_size", "target_size"), [(4, 3), (3, 200)])
def test_padding_may_differ_and_is_noted(tmp_path: Path, draft_size: int, target_size: int) -> None:
    draft = model(tmp_path / "draft", size=draft_size)
    found = shared_vocabulary(draft, model(tmp_path / "target", size=target_size))
    assert found == SharedVocabulary(target_size, draft_size)
    assert not found.is_whole
    assert f"the draft has {draft_size} ids and the target {target_size}" in found.note
    assert found.proposed.tolist() == [identity < target_size for identity in range(draft_size)]


def test_tokens_beside_the_words_may_be_had_by_one_alone(tmp_path: Path) -> None:
    ours = BPE | {"[PAD3]": 3, "<|reserved_special_token_0|>": 4, "<both>": 5}
    draft = model(tmp_path / "draft", ours, size=8, added=[{"content": "<ours>", "id": 6}])
    added = [{"content": "<tool>", "id": 4}, {"content": "<both>", "id": 5}]
    target = model(tmp_path / "target", size=9, added=[*added, {"content": "<theirs>", "id": 8}])
    found = shared_vocabulary(draft, target)
    assert found.only_one == (3, 4, 6, 8)
    assert found.proposed.tolist() == [True, True, True, False, False, True, False, True]
    assert "only one of them has a token for 4 ids (3, 4, 6, 8)" in found.note


OURS, THEIRS = ([{"content": text, "id": 3}] for text in ("<ours>", "<theirs>"))


@pytest.mark.parametrize(
    ("draft", "target", "named"),
    [
        ({"vocab": {"a": 1, "b": 0, "ab": 2}}, {}, "token 'a' is id 0"),
        ({"vocab": {"a": 0, "b": 1, "xy": 2}}, {}, "token 'ab' is id 2"),
        ({"vocab": BPE | {"extra": 3}}, {}, "'extra'"),
        ({"size": 2}, {}, "token 'ab' is id 2"),
        ({"size": 4, "added": OURS}, {"size": 4, "added": THEIRS}, "id 3 is '<theirs>'"),
    ],
    ids=["swapped", "replaced", "added", "no id", "other added tokens"],
)
def test_other_ids_are_refused_by_the_first_difference(
    tmp_path: Path, draft: dict[str, Any], target: dict[str, Any], named: str
) -> None:
    message = refusal(model(tmp_path / "draft", **draft), model(tmp_path / "target", **target))
    assert "share a vocabulary" in message
    assert named in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    draft, target = model(tmp_path / "draft"), model(tmp_path / "target")
    (draft / "model.safetensors").touch()
    (draft / name).unlink()
    assert f"{draft / name} does not exist" in refusal(draft, target)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model": {"vocab": 3}}'])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, name: str, content: str) -> None:
    draft, target = model(tmp_path / "draft"), model(tmp_path / "target")
    (target / name).write_text(content)
    assert str(target / name) in refusal(draft, target)


VOCABULARY = 100


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Invalid JSON"),
        (b"[1, 2]", "object"),
        (b'{"ids": [1, -1]}', "ids.1"),
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
