"""The chat template of the model whose files the gateway was given."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from card_client.chat_template import ChatTemplate, ChatTemplateError
from model_files import ModelFiles, ModelFilesError, model_files_of
from model_files.interface import special_tokens
from model_files.prompt_start import leading_token


def read_model(path: Path) -> tuple[ChatTemplate, Tokenizer]:
    """The template of a Hugging Face directory or a GGUF file, the plain one if it has none, and
    the tokenizer as the server reads it.

    A template that cannot be used refuses chats; a text can be completed without it. Raises
    `ChatTemplateError` naming the file if there is no tokenizer.
    """
    try:
        files = model_files_of(path)
        tokenizer = files.tokenizer()
    except ModelFilesError as error:
        raise ChatTemplateError(str(error)) from error
    try:
        return chat_template(files, tokenizer), tokenizer
    except ModelFilesError as error:
        return ChatTemplate.unusable(str(error)), tokenizer
    except ChatTemplateError as error:
        return ChatTemplate.unusable(f"{path}: {error}"), tokenizer


def chat_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate:
    """Raises `ChatTemplateError` and `ModelFilesError`."""
    source = files.chat_template()
    if source is None:
        return ChatTemplate.plain()
    tokens = special_tokens(files.tokenizer_config())
    return ChatTemplate.of(source, tokens, leading_token(tokenizer))
