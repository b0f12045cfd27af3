"""How much one request may hold: counts that are checked before anything inside is looked at.

The first error ends the check of a list, so a request of wrong items costs what one of them costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MOST_ANSWERS = 128
"""Texts that one request may ask for of each prompt."""
MOST_TEXTS = 1024
"""Texts that one request may have generated in all."""
MOST_TOKENS = 1 << 18
"""Tokens that one request may have generated in all, counted by its limits."""
MOST_ALTERNATIVES = 20
"""Likeliest tokens that may be asked for at each position, as at OpenAI."""
MOST_FIELDS = 256
"""Fields of an object of known fields."""
MOST_ENTRIES = 65_536
"""Of a list or an object without a bound of its own. The server has smaller ones."""
MOST_MESSAGES = 4096
"""Messages or items of a conversation, parts of one message, calls in one message."""
MOST_TOOLS = 256
MOST_BIASES = 4096
MOST_PROMPT_TOKENS = 1 << 20
MOST_TOKENIZED_BYTES = 256 << 10
"""Of a text for `/tokenize`; of half as many ids for `/detokenize`."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class AtMost:
    """Of a list or an object: so many entries, counted before one of them is looked at."""

    most: int

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        if schema["type"] == "list":
            schema = {**schema, "fail_fast": True}
        return core_schema.no_info_before_validator_function(self.check, schema)

    def check(self, value: Any) -> Any:
        """Raises `PydanticCustomError`."""
        if isinstance(value, list | dict) and len(value) > self.most:
            what = "items" if isinstance(value, list) else "fields"
            raise PydanticCustomError(
                "too_long", f"has {len(value)} {what}; at most {self.most} are taken"
            )
        return value


Few = Annotated[Item, AtMost(MOST_ENTRIES)]
"""A list or an object without a smaller bound."""
Talk = Annotated[list[Item], AtMost(MOST_MESSAGES)]
"""A conversation, or what one of its messages consists of."""
Tools = Annotated[list[Item], AtMost(MOST_TOOLS)]
