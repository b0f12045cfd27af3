"""A GGUF file that says what cannot be true is refused in one line, and at once."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from model_files import ModelFilesError, model_files_of
from model_files.gguf.header import read_header


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_name("small")
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_token_list(["a", "b"])
    writer.add_tensor("first", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("second", np.arange(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def refusal(file: Path) -> str:
    with pytest.raises(ModelFilesError) as refused:
        read_header(file)
    said = str(refused.value)
    assert str(file) in said
    assert "\n" not in said
    return said


def test_a_file_cut_off_anywhere_is_refused(file: Path) -> None:
    content = file.read_bytes()
    needed = max(tensor.offset + tensor.size for tensor in read_header(file).tensors.values())
    for length in range(needed):
        file.write_bytes(content[:length])
        refusal(file)


def test_a_file_with_any_byte_changed_is_read_or_refused(file: Path) -> None:
    content = file.read_bytes()
    for at in range(read_header(file).tensors["first"].offset):
        for value in (0x00, 0x7F, 0xFF):
            file.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
            with suppress(ModelFilesError):
                read_header(file)


HEAD = b"GGUF" + struct.pack("<I", 3)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


NINE_MILLION_BYTES = struct.pack("<IIQ", 9, 0, 9_000_000) + bytes(9_000_000)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"PK\x05\x06" + bytes(100), "does not begin with GGUF"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "its numbers are big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1 is not supported; allowed: 2, 3"),
        (HEAD + struct.pack("<QQ", 2**60, 0), "1152921504606846976 tensors"),
        (HEAD + struct.pack("<QQ", 0, 2**63), "9223372036854775808 metadata entries"),
        (HEAD + struct.pack("<QQQ", 0, 1, 2**62) + bytes(16), "inside its header"),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 0, 2**61),
            "2305843009213693952 numbers of 'k'",
        ),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**61),
            "2305843009213693952 texts of 'k'",
        ),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text(b"k") + NINE_MILLION_BYTES,
            "its lists have 9000000 values with the numbers of 'k'; allowed: at most 8388608",
        ),
        (HEAD + struct.pack("<QQ", 70000, 0) + bytes(9_000_000), "70000 tensors; allowed: at most"),
        (HEAD + struct.pack("<QQ", 0, 70000) + bytes(9_000_000), "70000 metadata entries; allowed"),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(9),
            "unknown type 9",
        ),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text(b"k") + struct.pack("<I", 8) + text(b"\xff\xfe"),
            "k holds bytes that are no UTF-8",
        ),
    ],
)
def test_absurd_headers_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert said in refusal(file)


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    os.mkfifo(file)
    with pytest.raises(ModelFilesError, match="no regular file"):
        model_files_of(file)


def test_a_header_longer_than_the_bound_is_refused(tmp_path: Path) -> None:
    """The file is sparse: it takes no room, and says that a key has a gigabyte."""
    file = tmp_path / "model.gguf"
    with file.open("wb") as written:
        written.write(HEAD + struct.pack("<QQQ", 0, 1, 1 << 30))
        written.truncate(2 << 30)
    assert "its header has more than 67108864 bytes" in refusal(file)
