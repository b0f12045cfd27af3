"""Values that programs trip over, beside ordinary ones."""

from __future__ import annotations

import struct

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

INTEGERS = st.one_of(
    st.sampled_from(
        [
            0,
            1,
            -1,
            2,
            63,
            64,
            255,
            256,
            *(n + sign for n in (1 << 15, 1 << 31, 1 << 32, 1 << 63) for sign in (-1, 0)),
            -(1 << 31),
            -(1 << 63),
        ]
    ),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-4, 40),
)
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e-45, 1e-7, 3.4e38, -3.4e38]), st.floats(width=32)
)
BYTES = st.one_of(
    st.sampled_from(
        [
            b"",
            b"\0",
            b"\xff\xfe",
            b"\xed\xa0\x80",
            "\u202e\u0000\ufeff".encode(),
            "\U0010ffff".encode(),
            b"%s%n{}",
            b"<|endoftext|>",
            b" " * 5000,
            b"card",
            b"draft_then_verify",
        ]
    ),
    st.binary(max_size=64),
    st.text(max_size=64).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.builds(lambda piece, count: piece * count, st.binary(min_size=1, max_size=4),
              st.sampled_from([100, 10_000, 300_000])),
)  # fmt: skip
_FORMATS = {"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H",
            "UINT32": "I", "UINT64": "Q", "FP32": "f", "FP64": "d"}  # fmt: skip
DATATYPES = (*_FORMATS, "FP16", "BF16", "BOOL", "BYTES", "", "NONSENSE")


def content_of(datatype: str, count: int) -> SearchStrategy[bytes]:
    """`count` hostile values of a datatype, as they travel."""
    if datatype == "BYTES":
        return st.lists(BYTES, min_size=count, max_size=count).map(packed_bytes)
    if datatype == "BOOL":
        return st.lists(st.sampled_from([0, 1, 2, 255]), min_size=count, max_size=count).map(bytes)
    if datatype in ("FP32", "FP64"):
        numbers = st.lists(FLOATS, min_size=count, max_size=count)
        return numbers.map(lambda row: struct.pack(f"<{count}{_FORMATS[datatype]}", *row))
    if datatype in _FORMATS:
        size = struct.calcsize(_FORMATS[datatype])
        whole = st.lists(INTEGERS, min_size=count, max_size=count)
        return whole.map(
            lambda row: b"".join((n % (1 << 8 * size)).to_bytes(size, "little") for n in row)
        )
    return st.binary(max_size=16)


def packed_bytes(items: list[bytes]) -> bytes:
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)
