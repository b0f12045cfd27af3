"""Messages of a chat become one prompt, by the chat template of the model's tokenizer.

The names that a template may use are those of Hugging Face's `apply_chat_template`. The template
runs in Jinja's sandbox and in a process with bounds, because it comes with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from card_client.errors import invalid
from chat_templates import TemplateProcess

TEMPLATES = TemplateProcess()
"""The process that all templates of this program share."""

_PLAIN = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ message.content }}

{% else -%}
{{ 'User' if message.role == 'user' else 'Assistant' }}: {{ message.content }}
{% endif -%}
{%- endfor -%}
Assistant:"""
"""For a model without a chat template: a transcript that a base model can continue."""

_PLAIN_STOPS = ("\nUser:",)
"""Where a base model would go on to speak for the person."""


class ChatTemplateError(ValueError):
    """A template is unusable, or refuses these messages; the message says why."""


@dataclass(frozen=True)
class ChatTemplate:
    """How one model wants a conversation written down.

    source         the template in Jinja's language
    stop_words     texts that end an answer beside those a request names
    leading_token  text of the token that the server's tokenizer puts before every prompt by
                   itself; "" if there is none
    knows_tools    the template writes down the tools that it is given
    is_own         the model's files have the template
    problem        why the template cannot be used at all; "" if it can
    """

    source: str
    special_tokens: Mapping[str, str]
    stop_words: tuple[str, ...] = ()
    leading_token: str = ""
    knows_tools: bool = False
    is_own: bool = True
    problem: str = ""

    @classmethod
    def of(
        cls, source: str, special_tokens: Mapping[str, str], leading_token: str = ""
    ) -> ChatTemplate:
        """A model's own template. Raises `ChatTemplateError`."""
        answer = TEMPLATES.ask(source, None)
        if "asks_for" not in answer:
            why = answer.get("refused") or answer["exceeded"]
            raise ChatTemplateError(f"wrong chat template: {why}")
        knows_tools = "tools" in answer["asks_for"]
        return cls(source, dict(special_tokens), (), leading_token, knows_tools)

    @classmethod
    def plain(cls) -> ChatTemplate:
        """For a model that brings none: a transcript that a base model can continue."""
        return cls(_PLAIN, {}, _PLAIN_STOPS, is_own=False)

    @classmethod
    def unusable(cls, problem: str) -> ChatTemplate:
        """In place of a template that cannot be used: it refuses every conversation."""
        return cls("", {}, is_own=False, problem=problem)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt, up to where the assistant speaks next.

        tools  the functions that the model may call, as OpenAI's chat completions take them

        Raises `ChatTemplateError`. The call waits for at most `chat_templates.Bounds.cpu_s`
        seconds of the template's computing.
        """
        if self.problem:
            raise ChatTemplateError(self.problem)
        answer = TEMPLATES.ask(
            self.source,
            {
                # Templates ask whether these are none, which something undefined is not.
                "documents": None,
                "tools": None,
                **self.special_tokens,
                **(variables or {}),
                **({} if tools is None else {"tools": tools}),
                "messages": messages,
                "add_generation_prompt": True,
            },
        )
        if "refused" in answer:
            raise ChatTemplateError(
                f"the chat template refuses these messages: {answer['refused']}"
            )
        if "exceeded" in answer:
            raise ChatTemplateError(f"the chat template was stopped: {answer['exceeded']}")
        # The server's tokenizer adds the leading token again.
        return str(answer["text"]).removeprefix(self.leading_token)


PARAMETERS = (
    *("bos_token", "eos_token", "pad_token", "unk_token"),
    *("sep_token", "cls_token", "mask_token"),
)
"""Names under which a server tells the texts of special tokens."""


def template_of(parameters: Mapping[str, str]) -> ChatTemplate | None:
    """What a server tells of its model's template in the parameters of Triton's configuration;
    None: nothing. Raises `CardError`."""
    source = parameters.get("chat_template")
    if not source:
        return None
    tokens = {name: parameters[name] for name in PARAMETERS if name in parameters}
    try:
        return ChatTemplate.of(source, tokens, parameters.get("leading_token", ""))
    except ChatTemplateError as error:
        raise invalid(f"the server tells a {error}") from error


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


class Conversation:
    """What was said so far, and how it is written down for the model.

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


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
