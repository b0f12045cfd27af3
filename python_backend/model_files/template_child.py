"""Renders one chat template under bounds. `template_trial` runs this file as a program of its own.

Standard input is a JSON object: ``source``, ``tokens`` (special tokens by name) and the bounds
``cpu_s``, ``memory_bytes`` and ``output_characters``. Standard output is a JSON object of texts,
the fields of `template_trial.Trial`. The kernel ends a process that computes longer than ``cpu_s``.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ANSWER = "forty-two"
"""What the assistant says in the conversation that shows where a turn ends."""
_QUESTION = {"role": "user", "content": "What is six times seven?"}
_LONGEST_END = 1024
"""Characters behind an answer that are reported: a token that ends a turn is shorter."""
_LONGEST_REASON = 300


class _TooLongError(Exception):
    """The template writes more than the bound."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote; the text has it as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it of instances)

    def parse(self, parser: Parser) -> nodes.Node:
        begin = next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=begin.lineno)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _trial(source: str, tokens: Mapping[str, str], most: int) -> dict[str, str]:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        # Templates ask whether these are none, which something undefined is not.
        "tools": None,
        "documents": None,
    }
    try:
        template = environment.from_string(source)
    except MemoryError:
        raise
    except Exception as error:
        return {"problem": f"it cannot be parsed: {_said(error)}"}

    def rendered(messages: list[dict[str, str]], begins_answer: bool) -> str:
        parts, length = [], 0
        variables = {"messages": messages, "add_generation_prompt": begins_answer}
        for part in template.generate({**tokens, **variables}):
            length += len(part)
            if length > most:
                raise _TooLongError
            parts.append(part)
        return "".join(parts)

    found = {"problem": "", "refusal": "", "answer_end": ""}
    try:
        rendered([_QUESTION], True)
    except (MemoryError, _TooLongError):
        raise
    except Exception as error:
        found["refusal"] = _said(error)
    try:
        text = rendered([_QUESTION, {"role": "assistant", "content": _ANSWER}], False)
        found["answer_end"] = text.rpartition(_ANSWER)[2][:_LONGEST_END] if _ANSWER in text else ""
    except (MemoryError, _TooLongError):
        raise
    except Exception:  # a template may fail in any way where a turn has ended
        pass
    return found


def _said(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:_LONGEST_REASON]


def main() -> None:
    """Read what is asked, answer, end."""
    asked = json.load(sys.stdin)
    seconds, memory, most = (asked[name] for name in ("cpu_s", "memory_bytes", "output_characters"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        found = _trial(asked["source"], asked["tokens"], most)
    except MemoryError:
        found = {"problem": f"it takes more than {memory >> 20} MiB of memory"}
    except _TooLongError:
        found = {"problem": f"it writes more than {most} characters"}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
