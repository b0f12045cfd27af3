"""A field whose values are the keys of a registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class OneOf:
    """For `Annotated[str, OneOf(keys)]`: like `Literal`, of keys that are known at run time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = list(keys)

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(self._keys)
