"""What the target is asked: a question through its chat template, or a text to continue."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from card.serving.requests.chat_parameters import chat_parameters
from card.settings import Settings
from card_client import CardError
from card_client.chat_template import ChatTemplate, ChatTemplateError, template_of
from card_client.conversation import opening

QUESTION = "Why is the sky blue? Answer in three sentences."
BEGINNING = """\
class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __repr__(self):
"""


@dataclass(frozen=True)
class Prompt:
    """shown  what a person typed; read  what the target reads"""

    shown: str
    read: str


def prompt_of(
    settings: Settings, typed: str | None, *, raw: bool, system: str | None = None
) -> Prompt:
    """What was typed, or an example, as the target wants it.

    raw     continue the text as it stands, as a target without a chat template does anyway
    system  what the target is told first, as of `card_client.conversation.opening`

    Raises `CardError` where the template cannot be used, and `ChatTemplateError` where it refuses.
    """
    if typed is None:
        return _example(settings, system, raw=raw)
    template = None if raw else _template(settings)
    return Prompt(typed, typed) if template is None else _question(template, system, typed)


def _example(settings: Settings, system: str | None, *, raw: bool) -> Prompt:
    """A server whose chat template cannot be used still completes texts."""
    with suppress(CardError, ChatTemplateError):
        if not raw and (template := _template(settings)):
            return _question(template, system, QUESTION)
    return Prompt(BEGINNING, BEGINNING)


def _template(settings: Settings) -> ChatTemplate | None:
    return template_of(chat_parameters(settings.target.path))


def _question(template: ChatTemplate, system: str | None, question: str) -> Prompt:
    messages = [*opening(template, system), {"role": "user", "content": question}]
    return Prompt(f"{question}\n", template.render(messages))
