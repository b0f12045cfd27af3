"""Ids that end a text, from everything that names some.

Models do not agree with themselves: of one the configuration names the end of a text and the chat
template the end of a turn, of another the generation configuration was written for an older
tokenizer. Whichever the model writes, the text ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from model_files.interface import ModelFiles, ModelFilesError, special_tokens

_ANSWER = "forty-two"
"""What an assistant says in a conversation that shows where its turn ends."""


def end_ids_by_source(files: ModelFiles, size: int, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The ids that each source names, without sources that name none.

    size  ids that the model has: another in a configuration is an error, another of the tokenizer
          is never written
    Raises `ModelFilesError`.
    """
    named = {
        "generation_config": _configured(
            files.generation_config_file, files.generation_config(), size
        ),
        "config": _configured(files.config_file, files.config(), size),
        "tokenizer": _of_token(
            tokenizer, special_tokens(files.tokenizer_config()).get("eos_token")
        ),
        "chat template": _of_token(tokenizer, _end_of_turn(files, tokenizer)),
    }
    written = {source: [it for it in ids if it < size] for source, ids in named.items()}
    return {source: ids for source, ids in written.items() if ids}


def end_ids(files: ModelFiles, size: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """All ids that end a text. Raises `ModelFilesError`."""
    named = end_ids_by_source(files, size, tokenizer).values()
    return tuple(dict.fromkeys(identity for ids in named for identity in ids))


def _configured(file: Path, config: dict[str, Any], size: int) -> list[int]:
    wanted = config.get("eos_token_id")
    ids = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    if all(type(identity) is int and 0 <= identity < size for identity in ids):
        return ids
    raise ModelFilesError(
        f"{file} has no usable eos_token_id ({wanted!r:.80}); "
        f"it must be null, a token id (0 to {size - 1}), or a list of them"
    )


def _of_token(tokenizer: Tokenizer, token: str | None) -> list[int]:
    identity = None if token is None else tokenizer.token_to_id(token)
    return [] if identity is None else [identity]


def _end_of_turn(files: ModelFiles, tokenizer: Tokenizer) -> str | None:
    """The token that the chat template writes behind an answer; None: no template, or no token."""
    source = files.chat_template()
    if source is None:
        return None
    behind = _behind_an_answer(source, special_tokens(files.tokenizer_config())).lstrip()
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    return max((token for token in added if behind.startswith(token)), key=len, default=None)


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote; the text has it as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it of instances)

    def parse(self, parser: Parser) -> nodes.Node:
        begin = next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=begin.lineno)


def _behind_an_answer(source: str, tokens: dict[str, str]) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: form,
        # Templates ask whether these are none, which something undefined is not.
        "tools": None,
        "documents": None,
    }
    messages = [
        {"role": "user", "content": "What is six times seven?"},
        {"role": "assistant", "content": _ANSWER},
    ]
    try:
        text = environment.from_string(source).render(tokens, messages=messages)
    except Exception:  # a template may fail in any way, and is told so where it is used
        return ""
    return text.rpartition(_ANSWER)[2] if _ANSWER in text else ""


def _refuse(message: str) -> None:
    raise TemplateError(message)
