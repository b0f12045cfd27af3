"""A chat becomes one prompt, by the chat template among the model's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from card_client.chat_template import ChatTemplate, ChatTemplateError
from card_gateway.errors import refused
from card_gateway.messages import Message, check_messages, plain
from card_gateway.tools.definitions import Tool
from card_gateway.tools.written import written_out
from model_files import ModelFiles, ModelFilesError, model_files_of
from model_files.interface import special_tokens
from model_files.prompt_start import leading_token
from model_files.template_trial import try_template


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
    trial = try_template(files)
    if trial is not None and trial.problem:
        raise ChatTemplateError(f"wrong chat template: {trial.problem}")
    tokens = special_tokens(files.tokenizer_config())
    return ChatTemplate.of(source, tokens, leading_token(tokenizer))


def prompt_of(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    variables: Mapping[str, Any] | None,
) -> str:
    """Write messages and tools as the chat template does.

    variables  further ones of the template

    Raises `ApiError`.
    """
    check_messages(messages)
    talk, told = plain(messages), [tool.plain() for tool in tools or ()] or None
    try:
        if template.knows_tools:
            return template.render(talk, variables, told)
        return template.render(written_out(talk, told), variables)
    except ChatTemplateError as error:
        raise refused("messages", str(error)) from error
