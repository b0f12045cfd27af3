"""Messages of a chat become one prompt, by the chat template of the model's tokenizer.

The names a template may use are those that Hugging Face's `apply_chat_template` offers; it runs in
Jinja's sandbox, because it comes with the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from card_client.errors import invalid

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

    stop_words     texts that end an answer beside those a request names
    leading_token  text of the token that the server's tokenizer puts before every prompt by
                   itself; "" if there is none
    knows_tools    the template writes down the tools that it is given
    source         the template as the model's files have it; "" if they have none
    problem        why the template cannot be used at all; "" if it can
    """

    template: Template
    special_tokens: Mapping[str, str]
    stop_words: tuple[str, ...] = ()
    leading_token: str = ""
    knows_tools: bool = False
    source: str = ""
    problem: str = ""

    @classmethod
    def of(
        cls, source: str, special_tokens: Mapping[str, str], leading_token: str = ""
    ) -> ChatTemplate:
        """A model's own template. Raises `ChatTemplateError`."""
        environment = _environment()
        try:
            template = environment.from_string(source)
            asks_for = meta.find_undeclared_variables(environment.parse(source))
        except (TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"wrong chat template: {error}") from error
        return cls(template, dict(special_tokens), (), leading_token, "tools" in asks_for, source)

    @classmethod
    def plain(cls) -> ChatTemplate:
        """For a model that brings none: a transcript that a base model can continue."""
        return cls(_environment().from_string(_PLAIN), {}, _PLAIN_STOPS)

    @classmethod
    def unusable(cls, problem: str) -> ChatTemplate:
        """In place of a template that cannot be used: it refuses every conversation."""
        return cls(_environment().from_string(""), {}, problem=problem)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt, up to where the assistant speaks next.

        tools  the functions that the model may call, as OpenAI's chat completions take them

        Raises `ChatTemplateError`.
        """
        if self.problem:
            raise ChatTemplateError(self.problem)
        try:
            prompt = self.template.render(
                {
                    # Templates ask whether these are none, which something undefined is not.
                    "documents": None,
                    "tools": None,
                    **self.special_tokens,
                    **(variables or {}),
                    **({} if tools is None else {"tools": tools}),
                    "messages": messages,
                    "add_generation_prompt": True,
                }
            )
        # Templates compute with what they are given, and fail in any of these ways.
        except (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        # The server's tokenizer adds it again.
        return prompt.removeprefix(self.leading_token)


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; a prompt has it as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it of instances)

    def parse(self, parser: Parser) -> nodes.Node:
        begin = next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=begin.lineno)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
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
