"""A conversation held by the client: the server sees one growing prompt."""

from __future__ import annotations


class Conversation:
    """Alternates a person's turns and the model's.

    For a base model, both prefixes are empty: each turn starts on a new line and the model simply
    goes on from it. For a model trained to chat they mark who speaks.
    """

    def __init__(self, user_prefix: str = "", model_prefix: str = "") -> None:
        self._user_prefix = user_prefix
        self._model_prefix = model_prefix
        self.text = ""

    @property
    def stop_words(self) -> list[str]:
        """Where the model must stop, so that it does not speak for the person."""
        marker = self._user_prefix.strip()
        return [marker] if marker else []

    def prompt(self, turn: str) -> str:
        """What to send for the person's next turn; the conversation itself stays as it is."""
        needs_break = self.text != "" and not self.text.endswith("\n")
        line_break = "\n" if needs_break else ""
        return f"{self.text}{line_break}{self._user_prefix}{turn}{self._model_prefix}"

    def commit(self, prompt: str, answer: str) -> None:
        """Makes a prompt and what the model answered part of the conversation."""
        self.text = prompt + answer

    def reset(self) -> None:
        """Forgets everything."""
        self.text = ""
