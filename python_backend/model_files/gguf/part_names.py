"""Names of the files of a model in parts, as llama.cpp's ``llama-gguf-split`` gives them:
``model-00001-of-00003.gguf``."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"(?P<model>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MOST_PARTS = 256


def parts_of(file: Path) -> list[Path]:
    """The files of the model that `file` is a part of, by its name, in order; they need not exist.
    The file alone if it is not named as one of 2 to `MOST_PARTS` parts."""
    named = _NAME.fullmatch(file.name)
    if named is None:
        return [file]
    number, count = int(named["number"]), int(named["count"])
    if not (1 < count <= MOST_PARTS and 1 <= number <= count):
        return [file]
    model = named["model"]
    return [file.with_name(f"{model}{_ending(part, count)}") for part in range(1, count + 1)]


def ending_of(file: Path) -> str:
    """``-00001-of-00003.gguf`` of the name of a part; "" of another file."""
    return file.name[-len(_ending(1, 1)) :] if len(parts_of(file)) > 1 else ""


def _ending(number: int, count: int) -> str:
    return f"-{number:05d}-of-{count:05d}.gguf"
