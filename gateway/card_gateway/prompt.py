"""A chat becomes one prompt."""

from __future__ import annotations

from card_client.chat_template import ChatTemplate, ChatTemplateError
from card_gateway.body import ChatBody
from card_gateway.errors import refused
from card_gateway.messages import plain
from card_gateway.tools.written import written_out


def prompt_of(template: ChatTemplate, chat: ChatBody) -> str:
    """The messages and tools as the model wants them written down. Raises `ApiError`."""
    messages, tools = plain(chat.messages), chat.tool_use.plain
    try:
        if template.knows_tools:
            return template.render(messages, chat.chat_template_kwargs, tools)
        return template.render(written_out(messages, tools), chat.chat_template_kwargs)
    except ChatTemplateError as error:
        raise refused("messages", str(error)) from error
