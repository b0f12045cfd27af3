"""Sizes of the caches, and limits of one request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from card.settings.section import Section

Tokens = Annotated[int, Field(ge=1, le=1 << 20)]
Words = Annotated[int, Field(ge=0, le=256)]
Count = Annotated[int, Field(ge=0, le=65536)]


class CacheSettings(Section):
    """The candidate cache, and the KV cache of earlier texts."""

    slots: int = Field(16, ge=1, le=256, description="Requests answered at the same time.")
    nodes: int = Field(512, ge=64, le=8192, description="Most candidates of one session.")
    kept_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = Field(
        8192, description="Tokens of earlier texts that both engines keep the KV of; 0: none."
    )
    state_tokens: int = Field(
        512,
        ge=16,
        le=65536,
        description="Most tokens with hidden states in a slot, for a draft that reads any.",
    )
    isolated: bool = Field(False, description="Requests without a `cache_salt` share no kept text.")
    directory: Path = Field(
        Path("/dev/shm"), description="Shared-memory mount that holds the candidate cache."
    )


class LimitSettings(Section):
    """What one request may ask for. A request that asks for more is refused by name."""

    context_tokens: Annotated[int, Field(ge=2, le=1 << 20)] = Field(
        4352, description="Prompt and output; by default at most the models' positions."
    )
    prompt_tokens: Tokens = Field(
        default_factory=lambda said: min(4096, said["context_tokens"] - 1),
        description="Longest prompt; by default 4096, or what a smaller context leaves.",
    )
    prompt_bytes: Annotated[int, Field(ge=1, le=1 << 26)] = Field(
        default_factory=lambda said: max(4096, 32 * said["prompt_tokens"]),
        description="Longest prompt before it is tokenized; by default 32 for each token.",
    )
    max_tokens: Tokens = Field(4096, description="Most new tokens of a request.")
    default_max_tokens: int = Field(
        default_factory=lambda said: said["max_tokens"],
        ge=1,
        description="New tokens of a request that does not say; by default `max_tokens`.",
    )
    queued_requests: Count = Field(64, description="Requests that may wait for a slot.")
    queue_timeout_s: float = Field(30, gt=0, le=3600, description="Longest wait for a slot.")
    stop_words: Words = Field(16, description="Stop words of one request.")
    bad_words: Words = Field(32, description="Bad words of one request.")
    word_bytes: int = Field(
        256, ge=1, le=65536, description="Longest stop or bad word in UTF-8 bytes."
    )
    bad_word_tokens: int = Field(
        512, ge=1, le=65536, description="Token ids of all bad words of one request."
    )
    stop_token_ids: int = Field(
        16, ge=0, le=32, description="Token ids that end a text, beside the model's."
    )
    logit_bias: Count = Field(300, description="Ids that a request may bias.")
    top_log_probs: int = Field(
        20, ge=0, le=20, description="Likeliest tokens that a request may ask for a position."
    )
    guide_bytes: Tokens = Field(
        65536, description="Longest schema, expression, grammar or list of choices."
    )
    guide_compile_s: float = Field(
        1.0, gt=0, le=60, description="Processor time a guide may take to compile."
    )
