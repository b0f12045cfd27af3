"""Finds references of a JSON schema that lead back to themselves, so that no text of them ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NOT_SCHEMAS = frozenset(("const", "enum", "default", "examples", "x-guidance"))
_MOST_LOOKED_AT = 20_000
"""Most parts to check in one schema; llguidance checks larger ones."""


def endless_reference(schema: dict[str, Any]) -> str | None:
    """JSON pointer of a part that is, or must hold, what it itself is. None: there is none.

    A property that may be left out and an array that may be empty are ways out: such a text ends.
    """
    references = _References(schema)
    for way, part in _parts(schema):
        if "$ref" in part and references.is_endless(part):
            return _pointer(way)
    return None


class _References:
    """The references of one schema, from its root."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, bool] = {}
        self._looked_at = 0
        self._targets: dict[str, Any] = {}

    def is_endless(self, part: dict[str, Any]) -> bool:
        """Whether every choice inside the part leads back to the part."""
        return self._leads_back(part, set())

    def _leads_back(self, part: Any, above: set[int]) -> bool:
        self._looked_at += 1
        if not isinstance(part, dict) or self._looked_at > _MOST_LOOKED_AT:
            return False
        if id(part) in above:
            return True
        if id(part) in self._known:
            return self._known[id(part)]
        above.add(id(part))
        every = [*_list(part, "allOf")]
        if isinstance(reference := part.get("$ref"), str):
            every.append(self._target(reference))
        every += _held(part)
        found = any(self._leads_back(one, above) for one in every)
        for name in ("anyOf", "oneOf"):
            some = _list(part, name)
            found = found or (bool(some) and all(self._leads_back(one, above) for one in some))
        above.remove(id(part))
        if not above:
            self._known[id(part)] = found
        return found

    def _target(self, reference: str) -> Any:
        """The part that the reference names; None: it is not inside this schema."""
        if reference not in self._targets:
            self._targets[reference] = self._found(reference)
        return self._targets[reference]

    def _found(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        part: Any = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict):
                part = part.get(name)
            elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
                part = part[int(name)]
            else:
                return None
        return part


def _list(part: dict[str, Any], name: str) -> list[Any]:
    value = part.get(name)
    return value if isinstance(value, list) else []


def _held(part: dict[str, Any]) -> list[Any]:
    """The schemas of values that every value of the part holds."""
    if part.get("type") == "object" and isinstance(properties := part.get("properties"), dict):
        return [properties.get(name) for name in _list(part, "required") if isinstance(name, str)]
    least = part.get("minItems", 0)
    if part.get("type") == "array" and isinstance(least, int | float) and least >= 1:
        first = _list(part, "prefixItems")
        return first[: int(least)] if least <= len(first) else [*first, part.get("items")]
    return []


_Way = tuple[Any, ...]
"""Of a part: the way to what holds it, and its step there. Pointers of all parts would repeat the
names of what holds them."""


def _parts(value: Any) -> Iterator[tuple[_Way, dict[str, Any]]]:
    """Every object in JSON with its way, except inside plain values (`_NOT_SCHEMAS`)."""
    waiting: list[tuple[_Way, Any]] = [((), value)]
    while waiting:
        way, value = waiting.pop()
        if isinstance(value, dict):
            yield way, value
            waiting += [
                ((way, name), inner) for name, inner in value.items() if name not in _NOT_SCHEMAS
            ]
        elif isinstance(value, list):
            waiting += [((way, place), inner) for place, inner in enumerate(value)]


def _pointer(way: _Way) -> str:
    steps: list[str] = []
    while way:
        way, step = way
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{step}" for step in reversed(steps))
