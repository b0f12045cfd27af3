"""Guides as vLLM's structured outputs."""

from __future__ import annotations

import json

import pytest

from card.constraints import Guide, GuideError
from card.engines.vllm.guides import structured_output


def test_schema_keeps_the_white_space_of_cards_own_guides() -> None:
    (schema,) = (
        json.loads(text) for text in structured_output(Guide("json_schema", "{}")).values()
    )
    assert "whitespace_pattern" in schema["x-guidance"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "[a-f]{3}"),
        ("choice", '["left", "right"]'),
        ("ebnf_grammar", 'root ::= "a" | "b" root'),
        ("ebnf_grammar", 'start: "a" | "b" start'),
    ],
)
def test_other_guides_are_grammars_in_lark(kind: str, text: str) -> None:
    assert "start:" in structured_output(Guide(kind, text))["grammar"]


def test_guide_that_cannot_be_is_an_error() -> None:
    with pytest.raises(GuideError):
        structured_output(Guide("json_schema", "{"))
