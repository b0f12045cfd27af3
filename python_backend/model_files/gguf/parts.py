"""A model in one GGUF file, or in parts: the first part has the metadata, and each has tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_files.gguf.header import MOST_ENTRIES, Header, StoredTensor, read_header
from model_files.gguf.part_names import MOST_PARTS, parts_of
from model_files.interface import ModelFilesError


@dataclass(frozen=True)
class _InParts(Header):
    """first  the header of the first part, which is read again only if nothing holds it"""

    first: Header


def read_model(file: Path) -> Header:
    """The header of a whole model; `file` may be any of its parts. Raises `ModelFilesError` that
    names the part that is missing or does not belong to the others."""
    files = parts_of(file)
    first = _part(files[0], len(files))
    count, tensors = _check_part(first, 0, len(files))
    if count == 1:
        return first
    found = dict(first.tensors)
    for number, part in enumerate(files[1:], 1):
        header = _part(part, count)
        if (said := _check_part(header, number, count)[1]) != tensors:
            raise ModelFilesError(
                f"{part}: split.tensors.count is {said}, and {tensors} in {files[0].name}; they "
                "are parts of different models"
            )
        _add(found, header, tensors)
    if len(found) != tensors:
        raise ModelFilesError(
            f"{files[0]}: split.tensors.count is {tensors}, and the {count} parts have "
            f"{len(found)} tensors; they do not belong together"
        )
    return _InParts(first.file, first.metadata, found, first)


def _part(file: Path, count: int) -> Header:
    if count > 1 and not file.exists():
        raise ModelFilesError(
            f"{file} is missing; the model has {count} parts, which must lie in one folder"
        )
    return read_header(file)


def _check_part(header: Header, number: int, count: int) -> tuple[int, int]:
    """The numbers of parts and of tensors of the model, by the metadata of the part `number`
    (counted from 0) of `count` by its name."""
    said = header.value("split.count", int) or 1
    if said != count:
        if count == 1:
            at = (header.value("split.no", int) or 0) + 1
            raise ModelFilesError(
                f"{header.file} is part {at} of {said} of a model (split.count), and its name does "
                f"not say so; parts are found by names like {_EXAMPLE}, with at most {MOST_PARTS} "
                "parts: rename them, or join them with llama.cpp's llama-gguf-split --merge"
            )
        raise ModelFilesError(
            f"{header.file}: split.count is {said}, and {count} by the file's name; name a whole "
            f"file otherwise than {_EXAMPLE}, and give a part its own name"
        )
    at = header.value("split.no", int) or 0
    if at != number:
        raise ModelFilesError(
            f"{header.file} is part {at + 1} by its metadata (split.no), and part {number + 1} by "
            "its name; download it again, or rename it"
        )
    return count, len(header.tensors) if count == 1 else _tensors(header)


_EXAMPLE = "model-00001-of-00003.gguf"


def _tensors(header: Header) -> int:
    count = header.required("split.tensors.count", int)
    if not 0 < count <= MOST_ENTRIES:
        raise ModelFilesError(
            f"{header.file}: split.tensors.count is {count}; allowed: 1 to {MOST_ENTRIES}"
        )
    return count


def _add(found: dict[str, StoredTensor], part: Header, most: int) -> None:
    """Add the tensors of a part."""
    if twice := found.keys() & part.tensors.keys():
        name = min(twice)
        raise ModelFilesError(
            f"{part.file}: tensor {name!r:.80} is also in {found[name].file.name}; they are parts "
            "of different models"
        )
    if len(found) + len(part.tensors) > most:
        raise ModelFilesError(
            f"{part.file}: split.tensors.count is {most}, and the parts up to this one have more; "
            "they are parts of different models"
        )
    found |= part.tensors
