"""Deltas concatenate to exactly the text, whatever tokens and pushes it is cut into."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from real_pair import TARGET
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from card.text import Delta, Detokenizer
from card.text.detokenizer import TextWindow

TRAINED = TARGET / "tokenizer.json"


@lru_cache
def trained() -> Tokenizer:
    """A byte-level BPE of a real model."""
    return Tokenizer.from_file(str(TRAINED))


@lru_cache
def byte_ids() -> dict[int, int]:
    """The trained token of every single byte."""
    # GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    ids = {byte: trained().token_to_id(name) for byte, name in names.items()}
    assert None not in ids.values()
    return {byte: int(token) for byte, token in ids.items() if token is not None}


SENTENCE_PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(
    "▁", "▁the", "▁cat", "▁sat", "s", "at", ".", "▁▁", "é", "�", "▁STOP", "\n",
)]  # fmt: skip


@lru_cache
def sentencepiece(decoder: str) -> Tokenizer:
    """A vocabulary like Llama 2's, with its decoder or with the plain Metaspace one."""
    vocabulary = {piece: i for i, piece in enumerate(SENTENCE_PIECES)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = {
        "llama": decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
        "metaspace": decoders.Metaspace(),
    }[decoder]
    return tokenizer


def pieces(*names: str) -> list[int]:
    return [SENTENCE_PIECES.index(name) for name in names]


def utf8(text: str) -> list[int]:
    """One trained token for each byte of the text."""
    return [byte_ids()[byte] for byte in text.encode()]


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The definition: what the decoded whole has beyond the decoded prompt."""
    whole = tokenizer.decode([*prompt, *tokens], skip_special_tokens=True)
    return whole[len(tokenizer.decode(list(prompt), skip_special_tokens=True)) :]


def deltas(
    detokenizer: Detokenizer, tokens: Sequence[int], cuts: Sequence[int] = ()
) -> list[Delta]:
    """Pushes the tokens in pieces of the lengths ``cuts``, the rest one by one, and finishes."""
    result, place = [], 0
    lengths = iter(cuts)
    while place < len(tokens):
        piece = tokens[place : place + next(lengths, 1)]
        result.append(detokenizer.push(piece, [False] * len(piece)))
        place += len(piece)
    return [*result, detokenizer.finish()]


def joined(parts: Sequence[Delta]) -> str:
    return "".join(part.text for part in parts)


FACES = [pieces(f"<0x{byte:02X}>")[0] for byte in "😀😀😀".encode()]
CHARACTERS = "a é\n€→漢字😀👩‍👩‍👧\ufffd\u0301"
any_token = st.integers(0, trained().get_vocab_size() - 1)
any_bytes = st.binary(max_size=6).map(lambda data: [byte_ids()[byte] for byte in data])
split_text = st.text(CHARACTERS, max_size=4).map(utf8)
# Bytes that begin, continue or can never be part of a character, one after the other.
broken_bytes = st.lists(
    st.sampled_from([0x41, 0x80, 0x9F, 0xBF, 0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF]), max_size=12
).map(lambda data: [byte_ids()[byte] for byte in data])
# Ids beyond the tokenizer's, as checkpoints with a padded vocabulary can produce.
padded = st.lists(
    st.integers(trained().get_vocab_size(), trained().get_vocab_size() + 8), max_size=9
)
streams = st.lists(
    st.one_of(st.lists(any_token, max_size=6), any_bytes, split_text, broken_bytes, padded),
    max_size=12,
).map(lambda parts: [token for part in parts for token in part])
cuts = st.lists(st.integers(1, 9), max_size=40)
piece_ids = st.lists(
    st.one_of(
        st.integers(0, len(SENTENCE_PIECES) - 1),
        st.integers(259, len(SENTENCE_PIECES) - 1),
        st.sampled_from(pieces("<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0xFF>", "<0x20>")),
    ),
    max_size=50,
)


@given(streams, streams, cuts)
@example(utf8("x😀")[:2], utf8("x😀y")[2:], [])
@example([], [*utf8("ok "), *utf8("😀")[:3]], [])
def test_byte_level_deltas_concatenate_to_the_text(
    prompt: list[int], tokens: list[int], lengths: list[int]
) -> None:
    parts = deltas(Detokenizer(trained(), prompt), tokens, lengths)
    assert joined(parts) == text_after(trained(), prompt, tokens)


@pytest.mark.parametrize("decoder", ["llama", "metaspace"])
@given(piece_ids, piece_ids, cuts)
@example(pieces("▁the") + FACES, [*FACES[:4], *pieces("s")], [])
@example(pieces("▁the") + FACES, pieces("<0xFF>", "s"), [])
def test_sentencepiece_deltas_concatenate_to_the_text(
    decoder: str, prompt: list[int], tokens: list[int], lengths: list[int]
) -> None:
    tokenizer = sentencepiece(decoder)
    parts = deltas(Detokenizer(tokenizer, prompt), tokens, lengths)
    assert joined(parts) == text_after(tokenizer, prompt, tokens)


@pytest.mark.parametrize(
    "token", [0x41, 0xFF, 0xF0], ids=["letters", "invalid bytes", "beginnings of characters"]
)
def test_the_window_stays_short_however_long_the_text(token: int) -> None:
    decoded: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(trained(), name)

        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            decoded.append(len(tokens))
            return trained().decode(tokens, skip_special_tokens)

    window = TextWindow(Watched(), [byte_ids()[token]] * 500)  # type: ignore[arg-type]
    for _ in range(500):
        window.push(byte_ids()[token])
    assert max(decoded) < 32
    assert len(decoded) < 600


STOP_LETTERS = "ab€"


def first_stop(text: str, words: Sequence[str]) -> tuple[str, int | None]:
    """The text before the stop that is complete first, and the length at which it is."""
    for end in range(len(text) + 1):
        found = [word for word in words if word and text[:end].endswith(word)]
        if found:
            return text[: end - max(map(len, found))], end
    return text, None


@given(
    st.text(STOP_LETTERS, max_size=30),
    st.lists(st.text(STOP_LETTERS, max_size=4), max_size=4),
    cuts,
    st.booleans(),
)
def test_text_ends_before_the_stop_that_is_complete_first(
    text: str, words: list[str], lengths: list[int], merged: bool
) -> None:
    tokens = list(trained().encode(text).ids) if merged else utf8(text)
    detokenizer = Detokenizer(trained(), utf8("abc"), words)
    parts = deltas(detokenizer, tokens, lengths)
    expected, end = first_stop(text, words)
    assert joined(parts) == expected
    assert detokenizer.stopped == (end is not None)
    if end is None:
        assert detokenizer.tokens_used == len(tokens)
    else:
        decoded = [trained().decode(tokens[:n]) for n in range(len(tokens) + 1)]
        needed = next(n for n, t in enumerate(decoded) if t[:end] == text[:end] and t[end - 1 :])
        assert detokenizer.tokens_used == needed


@given(st.text(STOP_LETTERS, max_size=30), st.lists(st.text("abc", min_size=1), max_size=3))
def test_only_what_could_begin_a_stop_string_is_held_back(text: str, words: list[str]) -> None:
    detokenizer = Detokenizer(trained(), [], words)
    emitted = ""
    for place, character in enumerate(text):
        tokens = utf8(character)
        emitted += detokenizer.push(tokens, [False] * len(tokens)).text
        if detokenizer.stopped:
            break
        so_far = text[: place + 1]
        beginnings = [
            size for word in words for size in range(len(word)) if so_far.endswith(word[:size])
        ]
        assert emitted == so_far[: len(so_far) - max(beginnings, default=0)]


def test_what_a_token_has_behind_a_stop_string_is_no_text() -> None:
    """Not even its end, which could have been the beginning of a character."""
    words = Tokenizer(models.WordLevel({"a\ufffd": 0, "b": 1}, unk_token="b"))
    words.decoder = decoders.Fuse()
    detokenizer = Detokenizer(words, [], ["a"])
    assert detokenizer.push([0], [False]) == detokenizer.finish() == Delta("", 0)
    assert detokenizer.stopped


@given(
    st.lists(st.tuples(st.sampled_from("ab€\n"), st.booleans()), max_size=25),
    st.lists(st.text("ab€", min_size=1, max_size=3), max_size=2),
    cuts,
)
def test_delta_when_candidates_were_accepted_counts_their_bytes_at_its_start(
    marked: list[tuple[str, bool]], words: list[str], lengths: list[int]
) -> None:
    text = "".join(character for character, _ in marked)
    flags = [flag for character, flag in marked for _ in character.encode()]
    tokens = utf8(text)
    detokenizer = Detokenizer(trained(), [], words)
    parts = []
    bounds = [0, *accumulate(lengths), len(tokens)]
    for start, end in pairwise(bounds):
        parts.append(detokenizer.push(tokens[start:end], flags[start:end]))
    parts.append(detokenizer.finish())
    place = 0
    for part in parts:
        size = len(part.text.encode())
        own = flags[place : place + size]
        assert part.accepted_bytes == (own.index(False) if False in own else size)
        place += size


def test_special_tokens_are_listed_once_when_streams_are_many() -> None:
    class Counted:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self.lists = 0
            self._tokenizer = tokenizer

        def get_added_tokens_decoder(self) -> Any:
            self.lists += 1
            return self._tokenizer.get_added_tokens_decoder()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tokenizer, name)

    counted: Any = Counted(Tokenizer(models.BPE({"a": 0}, [])))
    for _ in range(3):
        Detokenizer(counted, [0]).push([0], [False])
    assert counted.lists == 1
