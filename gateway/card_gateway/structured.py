"""Guides of a text: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`.

NIM has `guided_*` in `nvext`. Each becomes two tensors of Triton's ensemble.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from card_gateway.errors import as_json, refused
from card_gateway.limits import Few
from card_gateway.messages import Part

_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Guide:
    """The two tensors, and the field of a request that asks for them."""

    kind: str
    text: str
    field: str


class JsonSchema(Part):
    name: str | None = None
    """Without effect, as are the description and `strict`: a text is always held to its schema."""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """Beside `json_object`, as llama.cpp's server takes it."""


class StructuredOutputs(Part):
    """`structured_outputs`."""

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Few[list[str]] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: str | None = None
    structural_tag: None = None


class Guided(Part):
    """`guided_*`."""

    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Few[list[str]] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    """Without effect."""

    def guided(self, inside: str = "") -> Iterator[Guide]:
        """The guides that these fields ask for. `inside` is the path to the fields, for errors."""
        if self.guided_json is not None:
            pattern = self.guided_whitespace_pattern
            spacing = {} if pattern is None else {"whitespace_pattern": pattern}
            yield Guide("json_schema", _schema(self.guided_json, spacing), f"{inside}guided_json")
        yield from _plain(
            self.guided_regex, self.guided_choice, self.guided_grammar, f"{inside}guided_"
        )


class NvExt(Guided):
    """NVIDIA's extensions, as `genai-perf` and NIM's clients send them."""

    ignore_eos: bool | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    greed_sampling: bool | None = None


class GuidedFields(Guided):
    """The fields with guides. A request may have one guide."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    nvext: NvExt | None = None

    @property
    def guide(self) -> Guide | None:
        """None: the text may be anything. Raises `ApiError`."""
        found = [*self._of_response_format(), *self._of_structured_outputs(), *self.guided()]
        if self.nvext is not None:
            found += self.nvext.guided("nvext.")
        if len(found) > 1:
            one, other = found[0].field, found[1].field
            raise refused(other, f"{other} and {one} both say what the text must be; send one")
        return found[0] if found else None

    def _of_response_format(self) -> Iterator[Guide]:
        wanted = self.response_format
        if wanted is None:
            return
        if wanted.schema_ is not None and wanted.type != "json_object":
            field = "response_format.schema"
            raise refused(field, f"{field} is only allowed when the type is json_object")
        if wanted.type == "text":
            return
        if wanted.type == "json_object":
            of_object = _OBJECT if wanted.schema_ is None else wanted.schema_
            yield Guide("json_schema", _schema(of_object, {}), "response_format")
            return
        if wanted.json_schema is None:
            field = "response_format.json_schema"
            raise refused(field, f"{field} is missing", "missing_required_parameter")
        schema = _schema(wanted.json_schema.schema_ or {}, {})
        yield Guide("json_schema", schema, "response_format")

    def _of_structured_outputs(self) -> Iterator[Guide]:
        wanted = self.structured_outputs
        if wanted is None:
            return
        spacing: dict[str, Any] = {}
        if wanted.whitespace_pattern is not None:
            spacing["whitespace_pattern"] = wanted.whitespace_pattern
        if wanted.disable_any_whitespace:
            spacing["whitespace_flexible"] = False
        schema = wanted.json_ if wanted.json_ is not None else _OBJECT
        if wanted.json_ is not None or wanted.json_object:
            yield Guide("json_schema", _schema(schema, spacing), "structured_outputs.json")
        yield from _plain(wanted.regex, wanted.choice, wanted.grammar, "structured_outputs.")


def _plain(
    regex: str | None, choice: Few[list[str]] | None, grammar: str | None, prefix: str
) -> Iterator[Guide]:
    """An empty one asks for nothing."""
    if regex:
        yield Guide("regex", regex, f"{prefix}regex")
    if choice:
        yield Guide("choice", compact_json(choice), f"{prefix}choice")
    if grammar:
        yield Guide("ebnf_grammar", grammar, f"{prefix}grammar")


def compact_json(value: Any) -> str:
    """In at most as many bytes as the client sent: the server bounds the bytes of a guide."""
    return as_json(value, separators=(",", ":"))


def _schema(schema: str | dict[str, Any], spacing: dict[str, Any]) -> str:
    """The schema as text, with how white space is to be written."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return str(schema)  # the server says what is wrong with it
    if spacing and isinstance(schema, dict):
        schema = {**schema, "x-guidance": spacing}
    return compact_json(schema)
