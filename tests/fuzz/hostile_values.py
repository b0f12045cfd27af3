"""Values that programs trip over, beside ordinary ones."""

from __future__ import annotations

from hypothesis import strategies as st

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
