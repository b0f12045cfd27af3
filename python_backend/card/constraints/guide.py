"""Guides: constraints that a request may set for its text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "choice")
"""The first four are TensorRT-LLM's, where `json` is an object or an array. A grammar may also be
Lark's; `choice` is a JSON list of texts."""


class Budget(Enum):
    """Limits of one guide's work, which is counted, not timed, and so equal on every machine."""

    ITEMS = "parser items of one step"
    FUEL = "lexer fuel of one step"
    STATES = "lexer states of one text"


class GuideError(ValueError):
    """A guide cannot be enforced; the message says what is wrong, and where.

    budget  the limit that the guide reached; None: it is wrong, or allows no id at some place
    """

    def __init__(self, message: str, budget: Budget | None = None) -> None:
        super().__init__(message)
        self.budget = budget


@dataclass(frozen=True, slots=True)
class Guide:
    """The form of a whole text: valid JSON, JSON of a schema, a match of a regular expression or a
    grammar, or one of several texts.

    kind  one of `GUIDE_TYPES`
    text  the schema, the expression, the grammar or the choices; empty for `json`
    """

    kind: str
    text: str = ""
