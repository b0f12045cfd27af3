"""Messages of a chat become one prompt, by the chat template of the model's tokenizer.

The names a template may use are those that Hugging Face's `apply_chat_template` offers; it runs in
Jinja's sandbox, because it comes with the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

PLAIN = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ message.content }}

{% else -%}
{{ 'User' if message.role == 'user' else 'Assistant' }}: {{ message.content }}
{% endif -%}
{%- endfor -%}
Assistant:"""
"""For a tokenizer without a chat template: a transcript that a base model can continue."""

PLAIN_STOPS = ("\nUser:",)
"""Where a base model would go on to speak for the person."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplateError(ValueError):
    """A template is unusable, or refuses these messages; the message says why."""


@dataclass(frozen=True)
class ChatTemplate:
    """How one model wants a conversation written down.

    stop_words     texts that end an answer beside those a request names
    leading_token  text of the token that the tokenizer puts before every prompt by itself; ""
                   if there is none
    """

    template: Template
    special_tokens: Mapping[str, str]
    stop_words: tuple[str, ...] = ()
    leading_token: str = ""

    @classmethod
    def load(cls, directory: Path | None, tokenizer: Tokenizer | None = None) -> ChatTemplate:
        """The template of a Hugging Face directory, or the plain one if it has none.

        Raises `ChatTemplateError` naming the file.
        """
        config = {} if directory is None else _config(directory / "tokenizer_config.json")
        source = None if directory is None else _source(directory, config)
        tokens = {
            name: token["content"] if isinstance(token, dict) else str(token)
            for name in _SPECIAL_TOKENS
            if (token := config.get(name)) is not None
        }
        try:
            template = _environment().from_string(PLAIN if source is None else source)
        except TemplateError as error:
            raise ChatTemplateError(f"{directory}: wrong chat template: {error}") from error
        stops = PLAIN_STOPS if source is None else ()
        return cls(template, tokens, stops, _leading_token(tokenizer))

    def render(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt, up to where the assistant speaks next. Raises `ChatTemplateError`."""
        try:
            prompt = self.template.render(
                {
                    **self.special_tokens,
                    **(variables or {}),
                    "messages": messages,
                    "add_generation_prompt": True,
                }
            )
        # Templates compute with what they are given, and fail in any of these ways.
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        # The server's tokenizer adds it again.
        return prompt.removeprefix(self.leading_token)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes what HTML would misread, which has no place in a prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The template's text; a file of its own wins over the one inside the configuration."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default")
    return found


def _config(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChatTemplateError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ChatTemplateError(f"{file} must hold a JSON object")
    return content


def _leading_token(tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return ""
    added = tokenizer.encode("").ids
    return (tokenizer.id_to_token(added[0]) or "") if added else ""
