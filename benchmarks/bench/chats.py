"""Prompts as a target reads them: its chat template makes texts of chats."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from bench.prompts import Prompt, read_prompts
from card_gateway.template import read_model


def read_chats(
    target: Path, file: Path, limit: int | None = None
) -> tuple[Tokenizer, list[Prompt]]:
    """The target's tokenizer, and the first `limit` prompts. Raises `ChatTemplateError` and
    `PromptsError`."""
    template, tokenizer = read_model(target)
    return tokenizer, read_prompts(file, tokenizer, limit, template.render)
