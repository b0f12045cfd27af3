"""The tokenizer that a GGUF file describes."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from model_files.gguf.header import Header


def build_tokenizer(header: Header, config: dict[str, Any]) -> Tokenizer:
    raise NotImplementedError
