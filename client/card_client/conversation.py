"""A conversation held by the client: the server sees one growing prompt."""

from __future__ import annotations

from card_client.chat_template import ChatTemplate, ChatTemplateError
from card_client.errors import invalid

SYSTEM = "You answer questions briefly and correctly."
"""Small models answer better for it: without, or told to be helpful, the chat target is about to
answer a question about France in French (benchmarks/NOTES.md)."""


def opening(template: ChatTemplate, system: str | None) -> list[dict[str, str]]:
    """Messages in front of the first question.

    system  the system message; "": the template's own; None: `SYSTEM`, if the template supports
            system messages
    """
    if system is None:
        messages = [_said("system", SYSTEM)]
        try:
            template.render([*messages, _said("user", "Hello")])
        except ChatTemplateError:
            return []
        return messages
    return [_said("system", system)] if system else []


class TemplateConversation:
    """For a model that says how it wants conversations written down.

    text        all that was said, for people
    stop_words  where the model must stop, so that it does not speak for the person
    """

    def __init__(self, template: ChatTemplate, system: str | None = "") -> None:
        """`system` as of `opening`."""
        self._template = template
        self._opening = opening(template, system)
        self._messages: list[dict[str, str]] = []

    @property
    def text(self) -> str:
        return "\n".join(f"{it['role']}: {it['content']}" for it in self._messages)

    @property
    def stop_words(self) -> list[str]:
        return list(self._template.stop_words)

    def prompt(self, turn: str) -> str:
        """What to send for the person's next turn; the conversation itself stays as it is. Raises
        `CardError`."""
        try:
            messages = [*self._opening, *self._messages, _said("user", turn)]
            return self._template.render(messages)
        except ChatTemplateError as error:
            raise invalid(str(error)) from error

    def commit(self, turn: str, answer: str) -> None:
        self._messages += [_said("user", turn), _said("assistant", answer)]

    def reset(self) -> None:
        self._messages.clear()


class RawConversation:
    """For a base model, both prefixes are empty: each turn starts on a new line and the model
    simply goes on from it. For a model trained to chat they mark who speaks."""

    def __init__(self, user_prefix: str = "", model_prefix: str = "") -> None:
        self._user_prefix = user_prefix
        self._model_prefix = model_prefix
        self.text = ""

    @property
    def stop_words(self) -> list[str]:
        marker = self._user_prefix.strip()
        return [marker] if marker else []

    def prompt(self, turn: str) -> str:
        needs_break = self.text != "" and not self.text.endswith("\n")
        line_break = "\n" if needs_break else ""
        return f"{self.text}{line_break}{self._user_prefix}{turn}{self._model_prefix}"

    def commit(self, turn: str, answer: str) -> None:
        self.text = self.prompt(turn) + answer

    def reset(self) -> None:
        self.text = ""


Conversation = TemplateConversation | RawConversation


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
