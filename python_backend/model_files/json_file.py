"""Reading a small file that may come from a stranger: a regular one, and no longer than a bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_files.interface import ModelFilesError
from model_files.not_models import kind_of

MOST_JSON_BYTES = 64 << 20
"""Of a file beside the weights; a tokenizer of 260,000 tokens takes 35 MB."""


def is_irregular(file: Path) -> bool:
    """Whether something is there that is no regular file, such as a named pipe, which a reader
    would wait for. What cannot be looked at is not: reading it says why."""
    try:
        return file.exists() and not file.is_file()
    except OSError:
        return False


class JsonFileError(ModelFilesError):
    """There is no such object to be read; the message names the file and says why."""


def check_small(file: Path, most_bytes: int = MOST_JSON_BYTES) -> None:
    """Raises `JsonFileError` for a file that is no regular one or longer than the bound, and
    `OSError`."""
    if is_irregular(file):
        raise JsonFileError(f"{file} is no regular file")
    if (size := file.stat().st_size) > most_bytes:
        raise JsonFileError(f"{file} has {size} bytes; allowed: at most {most_bytes}")


def read_json_object(file: Path) -> dict[str, Any]:
    """The object that the file holds. Raises `JsonFileError`."""
    try:
        check_small(file)
        content = json.loads(file.read_text(encoding="utf-8"))
    except JsonFileError:
        raise
    except FileNotFoundError:
        raise JsonFileError(f"{file} does not exist") from None
    # Bytes that are no UTF-8, and numbers of thousands of digits, are a ValueError like bad JSON.
    except (OSError, ValueError, RecursionError) as error:
        if kind := kind_of(file):
            raise JsonFileError(f"{file} is {kind}") from error
        raise JsonFileError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise JsonFileError(f"{file} must hold a JSON object")
    return content
