"""What the target is asked: a question through its chat template, or a text to continue."""

from __future__ import annotations

from dataclasses import dataclass

from card.serving.chat_parameters import chat_parameters
from card.settings import Settings
from card_client.chat_template import template_of
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
    template = None if raw else template_of(chat_parameters(settings.target.path))
    if template is None:
        text = BEGINNING if typed is None else typed
        return Prompt(text, text)
    question = QUESTION if typed is None else typed
    messages = [*opening(template, system), {"role": "user", "content": question}]
    return Prompt(f"{question}\n", template.render(messages))
