"""What the server makes of a guide, tried with a text."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from card.constraints import Guide
from card.constraints.grammar import grammar_of

BYTES = LLTokenizer("byte")


def fits(guide: str, text: str, kind: str = "ebnf_grammar") -> bool:
    """Whether all of a text is what a guide describes."""
    matcher = LLMatcher(BYTES, grammar_of(Guide(kind, guide)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
