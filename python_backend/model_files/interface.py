"""What every kind of model says about itself, and what reading its files may raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer


class ModelFilesError(ValueError):
    """A file beside a model's weights is missing or wrong; the message names it and says why."""


@dataclass(frozen=True)
class TokenTable:
    """Which token of a vocabulary stands behind which id.

    ids    of the tokens, as the vocabulary spells them
    added  tokens that stand beside the words and their parts: special ones, reserved ones, padding
    """

    ids: Mapping[str, int]
    added: frozenset[str]


class ModelFiles(Protocol):
    """The files of one model. Every method raises `ModelFilesError` naming the file."""

    @property
    def path(self) -> Path:
        """The Hugging Face directory, or the GGUF file."""

    @property
    def config_file(self) -> Path:
        """The file that `config` comes from."""

    @property
    def generation_config_file(self) -> Path:
        """The file that `generation_config` comes from."""

    @property
    def tokenizer_file(self) -> Path:
        """The file that `tokenizer` comes from."""

    def config(self) -> dict[str, Any]:
        """The model's shape, under the names of Hugging Face's ``config.json``."""

    def generation_config(self) -> dict[str, Any]:
        """How texts are generated, as in ``generation_config.json``; empty if nothing says so."""

    def tokenizer_config(self) -> dict[str, Any]:
        """What ``tokenizer_config.json`` holds; empty if there is none."""

    def tokenizer(self) -> Tokenizer:
        """Text to ids and back; a prompt gets the bos token where the model wants one."""

    def leading_token(self) -> str:
        """Text of the token that `tokenizer` puts before every prompt; "" if there is none."""

    def token_table(self) -> TokenTable:
        """Which token stands behind which id."""

    def chat_template(self) -> str | None:
        """Jinja source that turns messages into a prompt; None: the model brings none."""

    def warnings(self) -> list[str]:
        """What an operator should know about files that are served all the same."""


SPECIAL_TOKENS = (
    *("bos_token", "eos_token", "pad_token", "unk_token"),
    *("sep_token", "cls_token", "mask_token"),
)
"""Names under which a chat template finds these tokens."""


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that the configuration names."""
    named = {name: tokenizer_config.get(name) for name in SPECIAL_TOKENS}
    return {name: _text(token) for name, token in named.items() if token is not None}


def _text(token: Any) -> str:
    """An added token is written as an object, with its text under `content`."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def sliding_window(config: Mapping[str, Any]) -> Any:
    """The window of a model whose attention slides, as its configuration has it; None: it does
    not slide."""
    slides = config.get("use_sliding_window", config.get("model_type") == "mistral")
    return config.get("sliding_window") if slides else None


def most_positions(config: Mapping[str, Any]) -> int | None:
    """The most that one session may have: within its window sliding attention is full attention,
    and beyond it no engine goes. None: the configuration names no such number."""
    named = (config.get("max_position_embeddings"), sliding_window(config))
    numbers = [number for number in named if type(number) is int and number > 0]
    return min(numbers, default=None)
