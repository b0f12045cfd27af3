"""What a request may ask its text to be: a guide, of one of a few kinds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "choice")
"""The first four are TensorRT-LLM's, where `json` is an object or an array. A grammar may also be
Lark's; `choice` is a JSON list of texts."""


class Budget(Enum):
    """Work that one guide may take. It is counted, not timed, so every machine counts the same."""

    ITEMS = "parser items of one step"
    FUEL = "lexer fuel of one step"
    STATES = "lexer states of one text"


class GuideError(ValueError):
    """A guide that no text can be held to; the message says what is wrong, and where.

    budget  what the guide has used up; None: it is wrong, or allows nothing at some place
    """

    def __init__(self, message: str, budget: Budget | None = None) -> None:
        super().__init__(message)
        self.budget = budget


@dataclass(frozen=True, slots=True)
class Guide:
    """What a text must be, whole: valid JSON, JSON of a schema, what a regular expression or a
    grammar describes, one of several texts.

    kind  one of `GUIDE_TYPES`
    text  the schema, the expression, the grammar or the choices; empty for `json`
    """

    kind: str
    text: str = ""
