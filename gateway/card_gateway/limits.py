"""How much one request may hold, and which fields are not offered.

Counts are checked before anything inside is looked at. The first error ends the check of a list, so
a request of wrong items costs what one of them costs. Of a field that is not offered a value that
asks for nothing is ignored, since clients send it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from card_gateway.errors import ApiError, as_json, refused

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
"""Entries of a list or an object without another bound. The server's bounds are smaller."""
MOST_MESSAGES = 4096
"""Messages or items of a conversation, parts of one message, calls in one message."""
MOST_TOOLS = 256
MOST_BIASES = 4096
MOST_PROMPT_TOKENS = 1 << 20
MOST_TOKENIZED_BYTES = 256 << 10
"""Bytes of a text for `/tokenize`. `/detokenize` takes half as many ids."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class AtMost:
    """Bounds the entries of a list or an object, and counts them before it checks any."""

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


NOT_OFFERED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI's API that are not offered, each with the values that ask for nothing."""

OF_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    # A chat template writes them, and the gateway writes none twice.
    "add_special_tokens": (True, False),
}
"""Fields that a chat does not have."""

TOOLS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
"""Fields that only a chat has."""

IGNORED: Mapping[str, tuple[Any, ...]] = {
    # how a text is written down, as other servers let it be changed
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "detokenize": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_hidden_states": (False,),
    # other ways to search and to sample
    "use_beam_search": (False,),
    "num_beams": (1,),
    "early_stopping": (False,),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "watermark": (False,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "no_repeat_ngram_size": (0,),
    # the prompt as it is read
    "add_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "truncate_prompt_tokens": (-1,),
    "priority": (0,),
    "prompt_logprobs": (),
    "include_reasoning": (True, False),
    "separate_reasoning": (True, False),
    "stream_reasoning": (True, False),
}
"""Fields of other servers that are not offered, each with the values that ask for nothing."""


def without_what_asks_for_nothing(
    body: Mapping[str, Any],
    known: Container[str],
    not_offered: Mapping[str, tuple[Any, ...]],
) -> dict[str, Any]:
    """The body without null, empty and neutral values of fields that are not `known`.

    Unknown fields with other values stay. Raises `ApiError` for a field of `not_offered` or
    `IGNORED` that asks for something.
    """
    if len(body) > MOST_FIELDS:
        raise ApiError(400, f"the body has {len(body)} fields; at most {MOST_FIELDS} are taken")
    tables = {**IGNORED, **not_offered}
    kept = {}
    for name, value in body.items():
        if name in known and name not in not_offered:
            kept[name] = value
        elif value is None or value in ([], {}, ""):
            continue
        elif name not in tables:
            kept[name] = value
        elif not any(_is(value, neutral) for neutral in tables[name]):
            allowed = " or ".join(map(as_json, tables[name]))
            only = f"only {allowed} is allowed" if tables[name] else "leave it out"
            raise refused(name, f"{name} is not offered; {only}", "unsupported_parameter")
    return kept


def _is(value: Any, neutral: Any) -> bool:
    """Equal, and both truth values or neither: 1 is not true."""
    return isinstance(value, bool) is isinstance(neutral, bool) and bool(value == neutral)
