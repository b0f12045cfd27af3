"""Collects Python sources into two files of documents: one to train on, one held out.

A document's own hash decides its place and whether it is held out, so the same files give the
same corpus in whatever order and from whatever folder they were found.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.errors import TrainingError
from training.progress import Show, silent
from training.recipe import Sources

TRAIN = "train.jsonl"
HELD_OUT = "held_out.jsonl"
SUMMARY = "corpus.json"

_TEST_FOLDERS = frozenset({"test", "tests", "testing", "idle_test"})
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class Document:
    """One source file without its leading comment block."""

    name: str
    text: str
    digest: str

    @property
    def percentile(self) -> int:
        """A number from 0 to 99 that depends on the text alone."""
        return int(self.digest[:8], 16) % 100


@dataclass(frozen=True)
class Found:
    """How many documents and characters a corpus holds."""

    train_documents: int
    held_out_documents: int
    characters: int


def default_roots() -> list[Path]:
    """The standard library and the installed packages of the running interpreter."""
    return [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]


def gather(
    roots: Sequence[Path],
    folder: Path,
    sources: Sources,
    show: Show = silent,
) -> Found:
    """Write ``train.jsonl``, ``held_out.jsonl`` and ``corpus.json`` into ``folder``.

    Raises:
        TrainingError: a root does not exist, or fewer than two documents were found (one to
            train on and one to hold out).
    """
    for root in roots:
        if not root.is_dir():
            raise TrainingError(f"--source {root}: no such folder")
    documents: dict[str, Document] = {}
    files = (file for root in roots for file in _files(root))
    for read, (root, path) in enumerate(files, 1):
        show(None, f"{read} files read")
        if (document := _document(root, path, sources)) is not None:
            documents.setdefault(document.digest, document)
    ordered = [documents[digest] for digest in sorted(documents)]
    if len(ordered) < 2:
        raise TrainingError(
            f"{len(ordered)} Python files of {sources.smallest_bytes} to "
            f"{sources.largest_bytes} bytes under {', '.join(map(str, roots))}: "
            "at least two are needed, name a folder with --source"
        )
    # A corpus of a few files may have none in the chosen percent: hold the lowest one out.
    limit = max(sources.held_out_percent, 1 + min(d.percentile for d in ordered))
    held_out = [d for d in ordered if d.percentile < limit]
    train = [d for d in ordered if d.percentile >= limit]
    if not train:
        held_out, train = held_out[:1], held_out[1:]

    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / TRAIN, train)
    _write(folder / HELD_OUT, held_out)
    found = Found(len(train), len(held_out), sum(len(d.text) for d in ordered))
    summary = {"roots": [str(root) for root in roots], **found.__dict__}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    return found


def texts(folder: Path, name: str) -> Iterator[str]:
    """The documents of ``train.jsonl`` or ``held_out.jsonl``, in their order.

    Raises:
        TrainingError: the corpus was not gathered yet.
    """
    path = folder / name
    if not path.is_file():
        raise TrainingError(f"{path} is missing: `all` gathers it")
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def without_leading_comments(text: str) -> str:
    """Drop the comment block at the top of a source: licences, shebangs, encodings."""
    lines = text.splitlines(keepends=True)
    first = 0
    while first < len(lines) and (not lines[first].strip() or lines[first].startswith("#")):
        first += 1
    return "".join(lines[first:])


def is_test(path: Path) -> bool:
    """Whether a path, relative to its root, looks like a test or like test data."""
    name = path.name
    return (
        not _TEST_FOLDERS.isdisjoint(path.parts[:-1])
        or name.startswith("test_")
        or name.endswith("_test.py")
        or name == "conftest.py"
    )


def _files(root: Path) -> Iterator[tuple[Path, Path]]:
    return ((root, path) for path in sorted(root.rglob("*.py")))


def _document(root: Path, path: Path, sources: Sources) -> Document | None:
    """None: it is no text to train on."""
    relative = path.relative_to(root)
    if is_test(relative) or not _SKIPPED_FOLDERS.isdisjoint(relative.parts):
        return None
    if not sources.smallest_bytes <= path.stat().st_size <= sources.largest_bytes:
        return None
    try:
        text = without_leading_comments(path.read_text("utf-8"))
    except UnicodeDecodeError:
        return None  # a few old sources declare another encoding: not worth the guess
    if len(text) < sources.smallest_bytes:
        return None
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return Document(relative.as_posix(), text, digest)


def _write(path: Path, documents: Sequence[Document]) -> None:
    with path.open("w", encoding="utf-8") as lines:
        for document in documents:
            lines.write(json.dumps({"name": document.name, "text": document.text}) + "\n")
