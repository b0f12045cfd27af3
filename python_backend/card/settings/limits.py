"""What the service holds, and what it allows one request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from card.settings.section import Section


class CacheSettings(Section):
    """Geometry of the candidate cache, and what is kept of texts."""

    slots: Annotated[int, Field(ge=1, le=256)] = 16
    """Requests that are answered at the same time; others wait."""
    nodes: Annotated[int, Field(ge=64, le=8192)] = 512
    """Most candidate nodes of one tree."""
    kept_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 8192
    """Tokens of earlier texts whose KV both engines keep beside that of the slots, so that a text
    that begins alike is not read again; those not used for longest make room. 0: none."""
    isolated: bool = False
    """Whether only requests with the same `cache_salt` share what is kept, and those without one
    share nothing; else those without one share with each other."""
    directory: Path = Path("/dev/shm")
    """Shared-memory mount that holds the pool; the user who serves must be able to write there."""


class LimitSettings(Section):
    """What one request may ask for; more is refused by name."""

    context_tokens: Annotated[int, Field(ge=2, le=1 << 20)] = 4352
    """Prompt and output together; at most what the models were built for, which is also the default
    where it is less."""
    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default_factory=lambda set_: min(4096, set_["context_tokens"] - 1)
    )
    """Default: 4096, or what a smaller context leaves."""
    prompt_bytes: Annotated[int, Field(ge=1, le=1 << 26)] = Field(
        default_factory=lambda set_: max(4096, 32 * set_["prompt_tokens"])
    )
    """Longer texts are refused before they are tokenized, which would hold up everybody else;
    default: 32 for each of `prompt_tokens`."""
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Most new tokens that a request may ask for."""
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(
        default_factory=lambda set_: set_["max_tokens"]
    )
    """Output limit of a request that names none, as far as the context has room; default:
    `max_tokens`."""
    queued_requests: Annotated[int, Field(ge=0, le=65536)] = 64
    """Requests that may wait for a slot; one more is UNAVAILABLE at once."""
    queue_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long a request may wait for a slot."""
    stop_words: Annotated[int, Field(ge=0, le=256)] = 16
    """Stop words of one request."""
    bad_words: Annotated[int, Field(ge=0, le=256)] = 32
    """Bad words of one request."""
    word_bytes: Annotated[int, Field(ge=1, le=65536)] = 256
    """Longest stop word or bad word in UTF-8 bytes."""
    bad_word_tokens: Annotated[int, Field(ge=1, le=65536)] = 512
    """Token ids of all bad words of one request together."""
    stop_token_ids: Annotated[int, Field(ge=0, le=32)] = 16
    """Token ids that end the text of one request beside those of the model."""
    logit_bias: Annotated[int, Field(ge=0, le=65536)] = 300
    """Token ids whose logits one request may change."""
    top_log_probs: Annotated[int, Field(ge=0, le=20)] = 20
    """Likeliest tokens that one request may ask for at each position. The pool has 8 bytes for each
    of them at every position of prompt and output of every slot."""
    guide_bytes: Annotated[int, Field(ge=1, le=1 << 20)] = 65536
    """Longest schema, regular expression, grammar or list of choices that guides a text."""
    guide_compile_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """How long such a guide may take to compile; one that takes longer is refused."""
