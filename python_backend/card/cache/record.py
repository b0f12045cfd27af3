"""Fields of the pool for processes that read and write some twenty of them in every pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_FORMATS: Final = {"i": "q", "u": "Q", "f": "d"}
"""What a memoryview calls the words of a NumPy kind."""


class Record:
    """The fields of one slot, or of the header, by name: single words as numbers, everything else
    as live arrays, or as words one behind the other.

    Words go through memoryviews, which load or store all eight bytes at once like NumPy's records
    and take a third of their time.

    records  [records] of `layout.slot_dtype` or `layout.header_dtype`
    """

    __slots__ = ("_arrays", "_fields", "_words")

    def __init__(self, records: NDArray[np.void], index: int) -> None:
        self._words: dict[str, memoryview[Any]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._fields: dict[str, memoryview[Any]] = {}
        row = records[index : index + 1]
        everything = row.view(np.uint8).data
        for name, (kind, at, *_) in (row.dtype.fields or {}).items():
            field = everything[at : at + kind.itemsize].cast(_FORMATS[kind.base.kind])  # type: ignore[call-overload]
            self._fields[name] = field
            if kind.shape:
                self._arrays[name] = row[name][0]
            else:
                self._words[name] = field

    def __getitem__(self, name: str) -> Any:
        word = self._words.get(name)
        return self._arrays[name] if word is None else word[0]

    def __setitem__(self, name: str, value: float) -> None:
        self._words[name][0] = value

    def words(self, name: str) -> memoryview[Any]:
        """The memory of a field, however many dimensions it has."""
        return self._fields[name]

    def read(self, name: str, at: int, count: int) -> list[Any]:
        """Copy so many words of a field from number `at` on."""
        found: list[Any] = self._fields[name][at : at + count].tolist()
        return found

    def write(self, name: str, at: int, values: Sequence[float] | NDArray[Any]) -> None:
        """Store words of a field from number `at` on. Raises `ValueError` if it has fewer."""
        field = self._fields[name]
        field[at : at + len(values)] = array(field.format, values)
