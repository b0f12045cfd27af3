"""The common part of all sections of the settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, field_validator
from pydantic_core import CoreSchema, core_schema


class OneOf:
    """In `Annotated[str, OneOf(keys)]`: a `Literal` with the keys of a registry."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = list(keys)

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(self._keys)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean that pydantic would take as a number."""
        if (
            isinstance(value, bool)
            and cls.model_fields[str(info.field_name)].annotation is not bool
        ):
            raise ValueError("true and false are not taken here")
        return value
