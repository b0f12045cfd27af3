"""A chat becomes one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from card_client.chat_template import ChatTemplate, ChatTemplateError
from card_gateway.errors import refused
from card_gateway.messages import Message, check_messages, plain
from card_gateway.tools.definitions import Tool
from card_gateway.tools.written import written_out


def prompt_of(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    variables: Mapping[str, Any] | None,
) -> str:
    """Messages and tools as the model wants them written down.

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
