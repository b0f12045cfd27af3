"""Reading a JSON file that may come from a stranger, and no named pipe, which is waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_files.interface import ModelFilesError


def is_irregular(file: Path) -> bool:
    """Whether something is there that is no regular file. What cannot be looked at is not: reading
    it says why."""
    try:
        return file.exists() and not file.is_file()
    except OSError:
        return False


class JsonFileError(ModelFilesError):
    """There is no such object to be read; the message names the file and says why."""


def read_json_object(file: Path) -> dict[str, Any]:
    """The object that the file holds. Raises `JsonFileError`."""
    if is_irregular(file):
        raise JsonFileError(f"{file} is no regular file")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JsonFileError(f"{file} does not exist") from None
    # Bytes that are no UTF-8, and numbers of thousands of digits, are a ValueError like bad JSON.
    except (OSError, ValueError, RecursionError) as error:
        raise JsonFileError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise JsonFileError(f"{file} must hold a JSON object")
    return content
