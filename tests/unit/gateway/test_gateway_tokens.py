"""Which part of a text goes with which log-probability, where the text alone is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_pair import TARGET
from tokenizers import Tokenizer

from card_gateway.tokens import TokenTexts
from model_files import model_files_of

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
EMOJI = "🙂"


def length(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    "text", ["def f(n):\n    return n", "é 日本語", f"a {EMOJI} b", "\t\n", ""]
)
def test_as_many_pieces_as_tokens_that_concatenate_to_the_text(text: str) -> None:
    pieces = TokenTexts(TOKENIZER).cut(text, length(text))
    assert len(pieces) == length(text)
    assert "".join(pieces) == text


def test_what_a_tokenizer_was_trained_with_cuts_and_fills_nothing(tmp_path: Path) -> None:
    text = "def fibonacci(n):\n    return n"
    trained = Tokenizer.from_str(TOKENIZER.to_str())
    trained.enable_truncation(4)
    trained.enable_padding(direction="left", length=64)
    trained.save(str(tmp_path / "tokenizer.json"))
    read = model_files_of(tmp_path).tokenizer()
    assert read.encode(text).ids == TOKENIZER.encode(text).ids


def test_a_plain_text_is_cut_where_the_tokenizer_cuts_it() -> None:
    text = "def fibonacci(n):\n    return n"
    encoding = TOKENIZER.encode(text, add_special_tokens=False)
    wanted = [text[begin:end] for begin, end in encoding.offsets]
    assert TokenTexts(TOKENIZER).cut(text, len(wanted)) == wanted


def test_a_character_of_several_tokens_stands_whole_at_its_first_one() -> None:
    """So the bytes of the pieces are the bytes of the text, whoever joins them."""
    assert length(EMOJI) > 1
    pieces = TokenTexts(TOKENIZER).cut(EMOJI, length(EMOJI))
    assert pieces == [EMOJI, *[""] * (length(EMOJI) - 1)]


def test_tokens_whose_character_is_still_held_back_have_empty_pieces() -> None:
    """A stream reports a token with the chunk in which it came, its text with the next one."""
    assert TokenTexts(TOKENIZER).cut("", 2) == ["", ""]
    assert TokenTexts(TOKENIZER).cut(EMOJI, 1) == [EMOJI]


@pytest.mark.parametrize("more", [-1, 1, 3])
def test_another_number_of_tokens_than_the_tokenizer_takes_loses_no_text(more: int) -> None:
    text = "def fibonacci(n):"
    count = length(text) + more
    pieces = TokenTexts(TOKENIZER).cut(text, count)
    assert len(pieces) == count
    assert "".join(pieces) == text
