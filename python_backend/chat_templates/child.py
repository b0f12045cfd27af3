"""Renders chat templates under bounds. `process` runs this file as a program of its own.

Each line of standard input is a JSON object: `source`, a template, and `variables`, or null to
compile the template alone. Each line of standard output answers one of them with one of
`text` (the rendering), `asks_for` (names of variables that the template reads), `refused` (why the
template failed) and `exceeded` (the bound that it broke). The kernel ends a process that computes
longer for one line than `cpu_s`. The arguments are this file and the fields of `process.Bounds`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _TooLongError(Exception):
    """The template writes more than the bound."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; a prompt has it as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it of instances)

    def parse(self, parser: Parser) -> nodes.Node:
        begin = next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=begin.lineno)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which has no place in a prompt."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
)
_ENVIRONMENT.filters["tojson"] = _to_json
_ENVIRONMENT.globals["raise_exception"] = _raise_exception
_ENVIRONMENT.globals["strftime_now"] = lambda form: datetime.now().strftime(form)


@lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def _rendered(source: str, variables: Mapping[str, Any], most: int) -> str:
    parts, length = [], 0
    for part in _compiled(source).generate(variables):
        length += len(part)
        if length > most:
            raise _TooLongError
        parts.append(part)
    return "".join(parts)


def _answer(asked: Mapping[str, Any], memory: int, most: int) -> dict[str, Any]:
    source, variables = asked["source"], asked["variables"]
    try:
        if variables is None:
            _compiled(source)
            return {"asks_for": list(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))}
        return {"text": _rendered(source, variables, most)}
    except MemoryError:
        return {"exceeded": f"it takes more than {memory >> 20} MiB of memory"}
    except _TooLongError:
        return {"exceeded": f"it writes more than {most} characters"}
    except Exception as error:  # a template is a program, which may fail in any way
        return {"refused": (str(error) or type(error).__name__)[:1000]}


def main(cpu_s: float, memory: int, most: int) -> None:
    """Answer lines until standard input ends.

    cpu_s   seconds of processor time for one line
    memory  bytes of addresses of this process
    most    characters of one rendering
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process
        answer = _answer(asked, memory, most)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
