"""A model in several GGUF files is read as one, and a part that does not belong to it is named."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from card.settings import load_settings
from card.settings.paths import in_ascii
from model_files import ModelFilesError, model_at
from model_files.gguf.parts import read_model
from model_files.opening import model_files_of, real_path

COUNT = 5
"""Tensors of a model; two lie in a part."""


def write(file: Path, first_tensor: int = 0, count: int = COUNT) -> list[Path]:
    """Write a model in three parts, as llama.cpp does, and return them."""
    writer = GGUFWriter(file, "llama", split_max_tensors=2)
    writer.add_name("in parts")
    for number in range(first_tensor, first_tensor + count):
        writer.add_tensor(f"tensor.{number}", np.full((2, 32), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(file.parent.glob(f"{file.stem}-*.gguf"))


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return write(tmp_path / "model.gguf")


def refusal(file: Path) -> str:
    with pytest.raises(ModelFilesError) as refused:
        read_model(file)
    said = str(refused.value)
    assert "\n" not in said
    return said


def change(part: Path, key: str, number: int) -> None:
    """Write another number of two bytes under a key."""
    content = bytearray(part.read_bytes())
    at = content.index(key.encode()) + len(key) + 4
    content[at : at + 2] = struct.pack("<H", number)
    part.write_bytes(content)


@pytest.mark.parametrize("named", [0, 1, 2])
def test_all_parts_are_read_when_any_of_them_is_named(parts: list[Path], named: int) -> None:
    header = read_model(parts[named])
    assert header.metadata["general.name"] == "in parts"
    assert len(header.tensors) == COUNT
    for number in range(COUNT):
        tensor = header.tensors[f"tensor.{number}"]
        assert tensor.file == parts[number // 2]
        stored = np.memmap(tensor.file, np.float32, "r", tensor.offset, tensor.shape)
        assert (stored == number).all()
    assert model_at(parts[named]) == parts[0]


def test_first_part_is_found_when_the_folder_is_named(parts: list[Path]) -> None:
    assert model_at(parts[0].parent) == parts[0]
    parts[0].unlink()
    assert model_at(parts[0].parent) == parts[0]  # so that the missing part is named
    write(parts[0].parent / "other.gguf")
    with pytest.raises(ModelFilesError, match="several GGUF files; name one: model-00001-of"):
        model_files_of(parts[0].parent)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_missing_part_is_named(parts: list[Path], missing: int) -> None:
    parts[missing].unlink()
    for named in parts:
        assert f"{parts[missing]} is missing; the model has 3 parts" in refusal(named)


def test_parts_of_different_models_are_refused(parts: list[Path], tmp_path: Path) -> None:
    whole = parts[1].read_bytes()
    longer = write(tmp_path / "longer.gguf", COUNT, COUNT + 1)
    parts[1].write_bytes(longer[1].read_bytes())
    assert f"{parts[1]}: split.tensors.count is 6, and 5 in {parts[0].name}" in refusal(parts[0])
    same_size = write(tmp_path / "same.gguf", 3)
    parts[1].write_bytes(same_size[1].read_bytes())  # has the tensors 5 and 6
    parts[2].write_bytes(same_size[0].read_bytes())
    change(parts[2], "split.no", 2)  # has the tensors 3 and 4
    assert f"{parts[2]}: split.tensors.count is 5, and the parts" in refusal(parts[0])
    parts[1].write_bytes(whole)  # has the tensors 2 and 3
    assert f"tensor 'tensor.3' is also in {parts[1].name}" in refusal(parts[0])


def test_part_that_is_too_short_is_refused(parts: list[Path]) -> None:
    for part in parts:
        change(part, "split.tensors.count", COUNT + 1)
    assert "split.tensors.count is 6, and the 3 parts have 5 tensors" in refusal(parts[0])
    content = parts[2].read_bytes()
    parts[2].write_bytes(content[:-200])
    assert str(parts[2]) in refusal(parts[0])
    assert "the file was cut off" in refusal(parts[0])


def test_part_keeps_its_name_when_it_is_a_link(parts: list[Path], tmp_path: Path) -> None:
    """As in Hugging Face's cache, where a link leads to a file that is named by its hash."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    links = [snapshot / part.name for part in parts]
    for number, (part, link) in enumerate(zip(parts, links, strict=True)):
        link.symlink_to(part.rename(blobs / str(number)))
    assert real_path(links[1]) == links[1]
    assert len(read_model(links[1]).tensors) == COUNT


def test_part_keeps_its_name_when_a_path_is_not_ascii(tmp_path: Path) -> None:
    folder, ascii_links = tmp_path / "modèles", tmp_path / "links"
    folder.mkdir()
    ascii_links.mkdir()
    parts = write(folder / "modèle.gguf")
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"target: {{path: '{parts[1]}'}}\ndraft: null\n", encoding="utf-8")
    linked = in_ascii(load_settings(settings), ascii_links).target.path
    assert str(linked).isascii()
    assert len(read_model(linked).tensors) == COUNT
