"""Fields that ask for nothing: ignored, so that a client may always send all it knows."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from card_gateway.errors import as_json, refused

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
"""Fields of other servers that nothing here can do, each with the values that ask for nothing."""


def without_what_asks_for_nothing(
    body: Mapping[str, Any],
    known: Container[str],
    not_offered: Mapping[str, tuple[Any, ...]],
) -> dict[str, Any]:
    """The body without null, empty and neutral values of fields that are not `known`.

    Raises `ApiError` for one of `not_offered` or `IGNORED` that asks for something. Of fields that
    nobody knows, those that say something stay.
    """
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
