"""What every section of the settings has in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, field_validator
from pydantic_core import CoreSchema, core_schema


class OneOf:
    """For `Annotated[str, OneOf(keys)]`: like `Literal`, of keys that are known at run time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = list(keys)

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(self._keys)


class OfWrongKindError(ValueError):
    """A value is not what its field takes, and to say what that is says enough."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _sensible(cls, value: Any, info: ValidationInfo) -> Any:
        """What pydantic would take for something else, or the operating system not at all."""
        parts = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(part, str) and "\0" in part for part in parts):
            raise ValueError("it must not hold a NUL character")
        if any(isinstance(part, str) and not _is_text(part) for part in parts):
            raise ValueError("it must not hold half of a surrogate pair")
        switches = cls.model_fields[str(info.field_name)].annotation is bool
        if any(isinstance(part, bool) for part in parts) and not switches:
            raise OfWrongKindError("true and false say nothing here")
        return value


def _is_text(value: str) -> bool:
    """Whether it has a form in UTF-8, as a path's bytes must."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
