"""What follows from several fields of a request: how long it may write, who shares, what guides."""

from __future__ import annotations

import hashlib

from card.cache import NO_SALT, SALT_BYTES
from card.constraints import GUIDE_TYPES, Guide
from card.serving.requests.refusal import Refusal, invalid, missing
from card.serving.requests.wire import GenerateRequest
from card.settings import LimitSettings


def output_budget(request: GenerateRequest, prompt_tokens: int, limits: LimitSettings) -> int:
    """How many tokens the request may generate after a prompt of so many tokens.

    Raises `Refusal` when the prompt is too long or leaves less room than `max_tokens` asks for.
    """
    field_name = "input_ids" if request.input_ids else "text_input"
    if not 1 <= prompt_tokens <= limits.prompt_tokens:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"{field_name} is {prompt_tokens} tokens long; it must be 1 to {limits.prompt_tokens} "
            "(limits.prompt_tokens)",
        )
    room = limits.context_tokens - prompt_tokens
    if request.max_tokens is None:
        return min(limits.default_max_tokens, room)
    if request.max_tokens > room:
        raise invalid(
            "max_tokens",
            request.max_tokens,
            f"at most {room} after a prompt of {prompt_tokens} tokens "
            f"(limits.context_tokens is {limits.context_tokens})",
        )
    return request.max_tokens


def salt_of(request: GenerateRequest) -> bytes:
    """Who may be told of the text, [SALT_BYTES]; `NO_SALT` also where nothing of it is kept."""
    if request.skip_reading_prefix_cache or not request.cache_salt:
        return NO_SALT
    return hashlib.blake2b(request.cache_salt.encode(), digest_size=SALT_BYTES).digest()


def guide_of(request: GenerateRequest) -> Guide | None:
    """What guides the text; None: nothing does.

    Raises `Refusal` when kind and guide do not belong together.
    """
    kind, text = request.guided_decoding_guide_type, request.guided_decoding_guide
    if not kind:
        if text:
            raise missing("guided_decoding_guide_type", f"one of {', '.join(GUIDE_TYPES)}")
        return None
    if kind == "json":
        if text:
            raise invalid(
                "guided_decoding_guide",
                text,
                "absent, since json is any JSON; send a schema as json_schema",
            )
    elif not text:
        raise missing("guided_decoding_guide", f"what {kind} stands for")
    return Guide(kind, text)
