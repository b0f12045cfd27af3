"""The beginning of a GGUF file: its metadata, and where each tensor lies.

The `gguf` package's own reader takes seconds for a vocabulary and checks no count, so that a
file of a hundred bytes may keep it busy for good. This one checks each count against the bytes that
are left, and against bounds: a value may take sixty times the memory that its bytes take.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from model_files.interface import ModelFilesError
from model_files.not_models import is_safetensors, kind_of

_MAGIC = b"GGUF"
_LENGTH = struct.Struct("<Q")
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
MOST_ENTRIES = 1 << 16
"""Metadata entries, and tensors."""
_MOST_VALUES = 1 << 23
"""In all lists together; a vocabulary of 260,000 tokens has 1.3 million with its merges."""
_MOST_HEADER_BYTES = 64 << 20
_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<?",
}

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies.

    file    one of the model's parts
    kind    how its numbers are stored, as GGUF calls it: ``F16``, ``Q4_K``
    shape   outputs first, unlike in the file
    offset  of its first byte in the file
    size    in bytes; 0 if the kind is unknown
    """

    name: str
    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Header:
    """Metadata by key, tensors by name."""

    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    def value(self, key: str, kind: type[_Kind]) -> _Kind | None:
        """The metadata under `key`; None if there are none. Raises `ModelFilesError` for others
        than of this `kind`."""
        value = self.metadata.get(key)
        if isinstance(value, int) and kind is float and not isinstance(value, bool):
            value = float(value)
        if value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
            return value
        raise ModelFilesError(f"{self.file}: {key} is {value!r:.60}; allowed: {_NAMES[kind]}")

    def required(self, key: str, kind: type[_Kind]) -> _Kind:
        """The metadata under `key`, which must be there."""
        value = self.value(key, kind)
        if value is None:
            raise ModelFilesError(f"{self.file}: {key} is missing in the file's metadata")
        return value


_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
}


_held: WeakValueDictionary[tuple[Path, int, int, int], Header] = WeakValueDictionary()
"""Headers by path, inode, size and mtime; weak, so that they live as long as their users."""


def read_header(file: Path) -> Header:
    """Read and check the beginning of a GGUF file. Raises `ModelFilesError`.

    While a header is in use, its file is read again only if it changed.
    """
    try:
        status = file.stat()
        if not status.st_size:
            raise _Unsound("it is empty")
        version = file, status.st_ino, status.st_size, status.st_mtime_ns
        if (held := _held.get(version)) is not None:
            return held
        with file.open("rb") as opened, _mapped(opened.fileno()) as content:
            reader = _Reader(file, content)
            metadata, tensors = reader.read()
    except FileNotFoundError:
        raise ModelFilesError(f"{file} does not exist") from None
    except _Unsound as error:
        if kind := _other_kind(file):
            raise ModelFilesError(f"{file} is {kind}") from None
        raise ModelFilesError(f"{file} is not a sound GGUF file: {error}") from None
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{file} is not a sound GGUF file: {error}") from error
    header = _held[version] = Header(file, metadata, {tensor.name: tensor for tensor in tensors})
    return header


def _other_kind(file: Path) -> str:
    if is_safetensors(file):
        return "a safetensors file: name the directory that it lies in"
    return kind_of(file)


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


class _Unsound(Exception):
    """What the file says cannot be true."""


class _Reader:
    """Reads from the front; `at` is the next byte."""

    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self._file = file
        self._content = content
        self._size = len(content)
        self._end = min(self._size, _MOST_HEADER_BYTES)
        self._at = 0
        self._values = 0

    def read(self) -> tuple[dict[str, Any], list[StoredTensor]]:
        """Metadata and tensors."""
        if self._bytes(4) != _MAGIC:
            raise _Unsound(f"it does not begin with {_MAGIC.decode()}")
        version = self._number("<I")
        if version in [known << 24 for known in _VERSIONS]:
            raise _Unsound("its numbers are big-endian; allowed: little-endian")
        if version not in _VERSIONS:
            allowed = ", ".join(map(str, _VERSIONS))
            raise _Unsound(f"version {version} is not supported; allowed: {allowed}")
        tensors, entries = self._number("<Q"), self._number("<Q")
        for count, what in ((tensors, "tensors"), (entries, "metadata entries")):
            if count > MOST_ENTRIES:
                raise _Unsound(f"it says {count} {what}; allowed: at most {MOST_ENTRIES}")
        metadata = self._metadata(entries)
        found = [self._tensor() for _ in range(self._count(tensors, 24, "tensors"))]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _Unsound(f"general.alignment is {alignment!r:.60}; allowed: powers of two")
        begin = -(-self._at // alignment) * alignment
        placed = [self._placed(begin, *tensor) for tensor in found]
        if len({tensor.name for tensor in placed}) < len(placed):
            raise _Unsound("two tensors have the same name")
        return metadata, placed

    def _metadata(self, entries: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(self._count(entries, 13, "metadata entries")):
            key = self._text("a key")
            if key in metadata:
                raise _Unsound(f"the key {key!r:.80} stands twice in its metadata")
            metadata[key] = self._value(key, self._number("<I"))
        return metadata

    def _value(self, key: str, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self._text(key)
        if kind in _SCALARS:
            return self._number(_SCALARS[GGUFValueType(kind)])
        if kind != GGUFValueType.ARRAY:
            raise _Unsound(f"{key!r:.80} holds a value of the unknown type {kind}")
        element, count = self._number("<I"), self._number("<Q")
        if element == GGUFValueType.STRING:
            self._count_values(count, 8, f"texts of {key!r:.80}")
            return self._texts(count, key)
        if element not in _SCALARS:
            raise _Unsound(f"{key!r:.80} is a list of values of the unknown type {element}")
        form = _SCALARS[GGUFValueType(element)]
        self._count_values(count, struct.calcsize(form), f"numbers of {key!r:.80}")
        return list(self._numbers(f"<{count}{form[1]}"))

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, kind and offset behind the header."""
        name = self._text("a tensor's name")
        dimensions = self._number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise _Unsound(f"tensor {name!r:.80} has {dimensions} dimensions")
        shape = self._numbers(f"<{dimensions}Q")
        return name, tuple(reversed(shape)), self._number("<I"), self._number("<Q")

    def _placed(
        self, begin: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> StoredTensor:
        """The tensor with its place in the file, which must hold all of it."""
        try:
            known = GGMLQuantizationType(kind)
        except ValueError:
            return StoredTensor(name, self._file, f"type {kind}", shape, begin + offset, 0)
        block, block_bytes = GGML_QUANT_SIZES[known]
        if shape[-1] % block:
            raise _Unsound(
                f"tensor {name!r:.80} has rows of {shape[-1]} numbers, "
                f"{known.name} comes in blocks of {block}"
            )
        size = math.prod(shape) // block * block_bytes
        if begin + offset + size > self._size:
            raise _Unsound(
                f"tensor {name!r:.80} ends at byte {begin + offset + size} of {self._size}; "
                "the file was cut off, or is not what its header says"
            )
        return StoredTensor(name, self._file, known.name, shape, begin + offset, size)

    def _count(self, count: int, least: int, what: str) -> int:
        """`count`, if as many things of at least `least` bytes can still follow."""
        if count * least > self._end - self._at:
            raise _Unsound(f"it says {count} {what}, and has no room for them")
        return count

    def _count_values(self, count: int, least: int, what: str) -> None:
        """As `_count`, for the values of a list."""
        self._values += self._count(count, least, what)
        if self._values > _MOST_VALUES:
            raise _Unsound(
                f"its lists have {self._values} values with the {what}; allowed: at most "
                f"{_MOST_VALUES}"
            )

    def _cut_off(self) -> _Unsound:
        if self._end < self._size:
            return _Unsound(f"its header has more than {_MOST_HEADER_BYTES} bytes")
        return _Unsound(f"it ends at byte {self._size}, inside its header")

    def _text(self, what: str) -> str:
        return self._texts(1, what)[0]

    def _texts(self, count: int, what: str) -> list[str]:
        """In a loop that calls little: a vocabulary has a hundred thousand."""
        found, content, at, end = [], self._content, self._at, self._end
        try:
            for _ in range(count):
                begin = at + _LENGTH.size
                at = begin + _LENGTH.unpack_from(content, at)[0]
                if at > end:
                    break
                found.append(content[begin:at].decode("utf-8"))
        except struct.error:
            at = end + 1
        except UnicodeDecodeError:
            raise _Unsound(f"{what:.80} holds bytes that are no UTF-8") from None
        if at > end:
            raise self._cut_off()
        self._at = at
        return found

    def _number(self, form: str) -> Any:
        return self._numbers(form)[0]

    def _numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > self._end:
            raise self._cut_off()
        found = self._content[self._at : end]
        self._at = end
        return found
