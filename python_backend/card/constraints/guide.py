"""What a request may ask its text to be: a guide, of one of a few kinds."""

from __future__ import annotations

from dataclasses import dataclass

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "choice")
"""The first four are TensorRT-LLM's, whose `json` is an object or an array. A grammar may also be
Lark's; `choice` is a JSON list of texts."""


class GuideError(ValueError):
    """A guide that no text can be held to; the message says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Guide:
    """What a text must be, whole: valid JSON, JSON of a schema, what a regular expression or a
    grammar describes, one of several texts.

    kind  one of `GUIDE_TYPES`
    text  the schema, the expression, the grammar or the choices; empty for `json`
    """

    kind: str
    text: str = ""
