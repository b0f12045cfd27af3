"""The interface of models' files, and their errors."""

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
    """The tokens of a vocabulary and their ids.

    ids    id of each token, in the vocabulary's spelling
    added  tokens beside words and their parts: special ones, reserved ones, padding
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
        """The defaults of generation, as in ``generation_config.json``; empty if there are none."""

    def tokenizer_config(self) -> dict[str, Any]:
        """The content of ``tokenizer_config.json``; empty if there is none."""

    def tokenizer(self) -> Tokenizer:
        """Text to ids and back; a prompt gets the bos token where the model wants one."""

    def leading_token(self) -> str:
        """Text of the token that `tokenizer` puts before every prompt; "" if there is none."""

    def token_table(self) -> TokenTable:
        """The tokens and their ids."""

    def chat_template(self) -> str | None:
        """Jinja source that turns messages into a prompt; None: the model has none."""

    def warnings(self) -> list[str]:
        """Warnings for the operator about files that can still be served."""


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
    """The attention window in the configuration; None: the model has no sliding attention."""
    slides = config.get("use_sliding_window", config.get("model_type") == "mistral")
    return config.get("sliding_window") if slides else None


def most_positions(config: Mapping[str, Any], *, slides: bool) -> int | None:
    """Most positions of one session. None: the configuration names no number.

    slides  whether the engine's attention slides; within the window sliding attention equals full
            attention
    """
    named = (
        config.get("max_position_embeddings"),
        None if slides else sliding_window(config),
    )
    numbers = [number for number in named if type(number) is int and number > 0]
    return min(numbers, default=None)
