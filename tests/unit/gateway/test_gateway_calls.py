"""Calls and log-probabilities, found in texts that arrive in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_pair import TARGET
from tokenizers import Tokenizer

from card_gateway.tokens import TokenTexts
from card_gateway.tools.calls import CallParser, whole_calls

Found = tuple[str, list[tuple[str, str]]]

TEXTS: list[tuple[str, Found]] = [
    ("Nothing to call.  ", ("Nothing to call.  ", [])),
    (
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}\n</tool_call>',
        ("", [("f", '{"a": [1, {"b": "}"}]}')]),
    ),
    (
        'Let me see.\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"q": "</tool_call> \\" <tool_call>"}}\n'
        "</tool_call>\n",
        ("Let me see.", [("f", "{}"), ("g", '{"q": "</tool_call> \\" <tool_call>"}')]),
    ),
    ('<tool_call>{"arguments": {"a": "é"}, "name": "f"}</tool_call>', ("", [("f", '{"a": "é"}')])),
    ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', ("", [("f", '{"a": 1}')])),
    ('<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        ("", [("f", '{"a": 1}')]),
    ),
    (
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
        "</tool_call>",
        ("", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": 7}</tool_call>',
        ("", [("f", '{"a": 1}')]),
    ),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}', ("", [("f", '{"a": 1}')])),
    ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', ("", [("f", '{"a": 1')])),
    ('<tool_call>{"name": "f", "arguments": {"a": "x', ("", [("f", '{"a": "x')])),
    ("<tool_call> none </tool_call> x", ("<tool_call> none </tool_call> x", [])),
    ('a <tool_call>{"name": 5}</tool_call>', ('a <tool_call>{"name": 5}</tool_call>', [])),
    ('a <tool_call>{"nam', ('a <tool_call>{"nam', [])),
    ("1 <tool", ("1 <tool", [])),
    (f"<tool_call>{'[' * 5000}", (f"<tool_call>{'[' * 5000}", [])),
    (f'<tool_call>{{"a": {"[" * 5000}', (f'<tool_call>{{"a": {"[" * 5000}', [])),
    (
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        ('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', []),
    ),
]


def found(pieces: list[str]) -> Found:
    parser = CallParser()
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    text, calls = whole_calls(parts)
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    return text, [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_calls_are_found_and_what_is_none_stays_text(text: str, expected: Found) -> None:
    assert found([text]) == expected
    assert found(list(text)) == expected


@given(st.data())
def test_the_same_text_gives_the_same_calls_however_it_is_cut(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from([text for text, _ in TEXTS]), max_size=3)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    bounds = [0, *places, len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(bounds)]
    assert found(pieces) == found([text])


def test_call_is_text_when_its_name_does_not_come_for_long() -> None:
    parser = CallParser()
    assert parser.feed('<tool_call>{"name": "f') == []
    assert whole_calls(parser.feed("f" * 20_000))[0].startswith('<tool_call>{"name": "ff')


TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
EMOJI = "🙂"


@pytest.mark.parametrize("more", [-1, 0, 1, 3])
@pytest.mark.parametrize(
    "text", ["def f(n):\n    return n", "é 日本語", f"a {EMOJI} b", "\t\n", ""]
)
def test_as_many_pieces_as_tokens_that_concatenate_to_the_text(text: str, more: int) -> None:
    """Also where the model took another number of tokens than the tokenizer does."""
    tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
    taken = [*tokens, 7, 8, 9][: max(len(tokens) + more, 1 if text else 0)]
    pieces = TokenTexts(TOKENIZER).cut(text, taken)
    assert len(pieces) == len(taken)
    assert "".join(pieces) == text


def test_pieces_are_what_each_token_wrote_where_the_tokenizer_cuts_the_text_otherwise() -> None:
    letters = "return é"
    tokens = [id for letter in letters for id in TOKENIZER.encode(letter).ids]
    pieces = TokenTexts(TOKENIZER).cut(letters, tokens)
    assert pieces[:7] == list("return ")
    assert len(TOKENIZER.encode(letters).ids) < len(tokens)
