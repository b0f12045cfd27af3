"""What every field of the settings takes, in words, from the JSON schema of their models."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from card.settings.section import Section
from card.settings.whole import Settings

Place = tuple[int | str, ...]
"""Names of sections and a field, from the outside in; a number is an entry of a list."""


@dataclass(frozen=True)
class Node:
    """The settings as a whole, a section, a field or an entry of a list."""

    place: Place
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.place[-1])

    @property
    def fields(self) -> list[Node]:
        """Of a section; of anything else none."""
        parts: dict[str, Any] = self.schema.get("properties", {})
        return [Node((*self.place, name), _resolved(part)) for name, part in parts.items()]

    @property
    def is_section(self) -> bool:
        return "properties" in self.schema

    @property
    def is_json_in_a_variable(self) -> bool:
        """Whether an environment variable holds it as JSON."""
        return self.is_section or self.schema.get("type") == "array"

    @property
    def meaning(self) -> str:
        """What its docstring says; empty without one."""
        return str(self.schema.get("description", "")).replace("``", "`")

    @property
    def allowed(self) -> str:
        """What may stand here: `a whole number from 1 to 256`."""
        return _allowed(self.schema)

    def deepest(self, place: Place) -> Node:
        """The node at `place` below this one, or the last one on the way there."""
        node = self
        for part in place:
            below = node._child(part)
            if below is None:
                break
            node = below
        return node

    def leaves(self) -> Iterator[Node]:
        """Every field of this section and of those inside it."""
        for field in self.fields:
            yield from field.leaves() if field.is_section else (field,)

    def _child(self, part: int | str) -> Node | None:
        if isinstance(part, int) and "items" in self.schema:
            return Node((*self.place, part), _resolved(self.schema["items"]))
        return next((field for field in self.fields if field.name == part), None)


def whole() -> Node:
    """All settings, without what they mean."""
    return Node((), _schema())


def explained() -> Node:
    """All settings, with what their docstrings say."""
    schema = _schema()
    _describe(schema, Settings)
    for section in _sections(Section):
        _describe(schema["$defs"].get(section.__name__, {}), section)
    return Node((), schema)


@functools.cache
def _schema() -> dict[str, Any]:
    return Settings.model_json_schema()


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Put what a model's docstrings say into its schema. pydantic can do that, and would read them
    at every start of every process."""
    meanings = _docstrings(model)
    for name, field in schema.get("properties", {}).items():
        if name in meanings:
            field["description"] = meanings[name]


def _sections(base: type[Section]) -> Iterator[type[Section]]:
    for section in base.__subclasses__():
        yield section
        yield from _sections(section)


def _docstrings(model: type) -> dict[str, str]:
    """What stands below each field in the source of a model and of those that it extends."""
    found = {}
    for cls in reversed(model.__mro__):
        if not cls.__module__.startswith(__package__):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
    return found


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """With the model it refers to in the place of the reference."""
    if "$ref" not in schema:
        return schema
    model: dict[str, Any] = _schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    return model | {key: value for key, value in schema.items() if key != "$ref"}


def _allowed(schema: dict[str, Any]) -> str:
    alternatives = [*schema.get("anyOf", ()), *({"const": word} for word in schema.get("or", ()))]
    if alternatives:
        own = [] if "anyOf" in schema else [_form(schema)]
        return ", or ".join([*own, *map(_allowed, alternatives)])
    form = _form(schema)
    return f"{form}, such as {_said(schema['examples'][0])}" if "examples" in schema else form


def _form(schema: dict[str, Any]) -> str:
    """What `schema` takes if nothing else than its own kind of value is allowed."""
    kind = schema.get("type")
    if "form" in schema:
        return str(schema["form"])
    if "const" in schema:
        return _said(schema["const"])
    if "enum" in schema:
        return _either([_said(value) for value in schema["enum"]])
    if "properties" in schema:
        return f"a mapping like {{{next(iter(schema['properties']))}: ...}}"
    if kind == "array":
        return _list(schema)
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(schema)
    if schema.get("format") == "path":
        return "a path"
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "a string")


def _list(schema: dict[str, Any]) -> str:
    entry, least = _allowed(_resolved(schema["items"])), schema.get("minItems")
    if entry == "a string" and not least:
        return "a list of strings"
    return f"a list{f' with {least} entry or more' if least else ''}, each {entry}"


def _range(schema: dict[str, Any]) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f" from {_said(schema['minimum'])} to {_said(schema['maximum'])}"
    words = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    bounds = [f"{word} {_said(schema[key])}" for key, word in words.items() if key in schema]
    return f" {' and '.join(bounds)}" if bounds else ""


def _either(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _said(value: object) -> str:
    """As one writes it in the file."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)
