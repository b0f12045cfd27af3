"""Draft and target must mean the same token by the same id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from card.engines.interface import EngineError
from model_files.json_file import JsonFileError, read_json_object


def check_shared_vocabulary(draft: Path, target: Path) -> None:
    """Compare two Hugging Face directories. Raises `EngineError` at the first difference."""
    draft_size, target_size = vocabulary_size(draft), vocabulary_size(target)
    if draft_size != target_size:
        raise EngineError(
            f"draft and target must share a vocabulary: {draft} has {draft_size} ids, "
            f"{target} has {target_size}"
        )
    draft_ids, target_ids = _vocabulary(draft), _vocabulary(target)
    for token, identity in target_ids.items():
        if draft_ids.get(token) != identity:
            raise EngineError(
                f"draft and target must share a vocabulary: token {token!r} is id {identity} in "
                f"{target} and {draft_ids.get(token, 'absent')} in {draft}"
            )
    if extra := draft_ids.keys() - target_ids.keys():
        raise EngineError(
            f"draft and target must share a vocabulary: {draft} has token {min(extra)!r}, "
            f"{target} does not"
        )


def vocabulary_size(directory: Path) -> int:
    """How many ids the model of a Hugging Face directory has. Raises `EngineError`."""
    file = directory / "config.json"
    size = _read(file).get("vocab_size")
    if not isinstance(size, int):
        raise EngineError(f"{file}: vocab_size is {size!r}; allowed: a whole number")
    return size


def _vocabulary(directory: Path) -> dict[str, int]:
    tokenizer = _read(directory / "tokenizer.json")
    try:
        vocabulary = tokenizer["model"]["vocab"]
        ids = (
            dict(vocabulary)
            if isinstance(vocabulary, dict)
            else {token: index for index, (token, _) in enumerate(vocabulary)}
        )
        return ids | {added["content"]: added["id"] for added in tokenizer.get("added_tokens", [])}
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"{directory / 'tokenizer.json'} holds no vocabulary: {error!r}"
        ) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file)
    except JsonFileError as error:
        raise EngineError(str(error)) from error
