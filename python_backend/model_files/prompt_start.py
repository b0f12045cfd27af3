"""Whether a tokenizer puts the bos token before a prompt.

The last step of a tokenizer, its post-processor, adds tokens. Some are saved with one that adds the
bos token and some without, and `add_bos_token` of the tokenizer's configuration decides.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import PostProcessor, Sequence, TemplateProcessing


def leading_token(tokenizer: Tokenizer) -> str:
    """Text of the token that the tokenizer puts before every prompt; "" if there is none."""
    added = tokenizer.encode("").ids
    return (tokenizer.id_to_token(added[0]) or "") if added else ""


def with_bos_token(tokenizer: Tokenizer, bos_token: str | None, *, wanted: bool) -> Tokenizer:
    """The tokenizer with the bos token before a prompt if it is `wanted`, and without it if not."""
    identity = None if bos_token is None else tokenizer.token_to_id(bos_token)
    if bos_token is None or identity is None or (leading_token(tokenizer) == bos_token) == wanted:
        return tokenizer
    if not wanted:
        return _without(tokenizer, bos_token)
    add: PostProcessor = TemplateProcessing(
        single=[bos_token, "$A"],
        pair=[bos_token, "$A", "$B"],
        special_tokens=[(bos_token, identity)],
    )
    before = tokenizer.post_processor
    tokenizer.post_processor = add if before is None else Sequence([before, add])
    return tokenizer


def _without(tokenizer: Tokenizer, token: str) -> Tokenizer:
    content = json.loads(tokenizer.to_str())
    content["post_processor"] = _rid_of(content["post_processor"], token)
    return Tokenizer.from_str(json.dumps(content))


def _rid_of(processor: dict[str, Any], token: str) -> dict[str, Any]:
    """The description of a post-processor that adds no `token`."""
    if processor["type"] == "Sequence":
        steps = [_rid_of(step, token) for step in processor["processors"]]
        return {**processor, "processors": steps}
    if processor["type"] != "TemplateProcessing":
        return processor
    left = {
        name: [it for it in processor[name] if it.get("SpecialToken", {}).get("id") != token]
        for name in ("single", "pair")
    }
    return {**processor, **left}
