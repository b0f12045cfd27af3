"""A chat template is a program: what it may compute, take and write is bounded."""

from __future__ import annotations

import resource
import signal
import sys

import pytest

from card_client.chat_template import TEMPLATES, ChatTemplate, ChatTemplateError
from chat_templates import Bounds, TemplateProcess

TALK = [{"role": "user", "content": "hello"}]
HARD = Bounds(cpu_s=120.0, memory_bytes=256 << 20, output_characters=1 << 20)
"""Of processor time there is more than any of these templates takes."""
QUICK = Bounds(cpu_s=0.2)


@pytest.mark.parametrize(
    ("bounds", "source", "said"),
    [
        (
            QUICK,
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "exceeded: it computes for more than 0.2 s",
        ),
        (
            QUICK,
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
            "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
            "exceeded: it ",
        ),
        (HARD, "{{ 'a' * 1500000000 }}", "exceeded: it takes more than 256 MiB of memory"),
        (HARD, "{{ [messages] * 1000000000 }}", "exceeded: it takes more"),
        (HARD, "{{ '%1000000000d' % 1 }}", "exceeded: it takes more"),
        (HARD, "{{ 'a' | center(1000000000) }}", "exceeded: it takes more"),
        (
            HARD,
            "{{ messages[0].content.replace('', 'x' * 100000000) }}",
            "exceeded: it takes more",
        ),
        (HARD, "{{ (1).to_bytes(1000000000, 'big') }}", "exceeded: it takes more"),
        (
            HARD,
            "{{ (messages * 99999) | map('string') | join('x' * 99999) }}",
            "exceeded: it takes more",
        ),
        (
            HARD,
            "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
            "exceeded: it writes more than 1048576 characters",
        ),
        (HARD, "{{ range(1000000000) | list }}", "refused: Range too big"),
        (HARD, "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "refused: maximum rec"),
        (
            HARD,
            "{% for m in messages %}{{ m | from_json }}{% endfor %}",
            "refused: No filter named",
        ),
        (HARD, "{{ " + 3000 * "(" + 3000 * ")" + " }}", "refused: maximum recursion depth"),
    ],
)
def test_template_when_it_breaks_a_bound_is_refused(bounds: Bounds, source: str, said: str) -> None:
    process = TemplateProcess(bounds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ((kind, why),) = process.ask(source, {"messages": TALK}).items()
    assert f"{kind}: {why}".startswith(said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"
    answer = process.ask("{{ messages[0].content }}", {"messages": TALK})
    process.close()
    assert answer == {"text": "hello"}


def test_template_when_its_process_was_killed_before_renders() -> None:
    template = ChatTemplate.of("{{ messages[0].content }}", {})
    process = TEMPLATES._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert template.render(TALK) == "hello"


def test_chat_when_its_template_breaks_a_bound_is_refused_with_the_bound() -> None:
    template = ChatTemplate.of("{{ 'a' * 1500000000 }}", {})
    with pytest.raises(ChatTemplateError, match="was stopped: it takes more than 512 MiB"):
        template.render(TALK)


def test_template_when_sys_executable_is_no_interpreter_renders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a stub of Triton."""
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    process = TemplateProcess()
    assert process.ask("{{ x }}", {"x": 1}) == {"text": "1"}
    process.close()


def test_template_when_variables_are_json_renders_them() -> None:
    said = {"none": None, "deep": [{"x": 1.5}], "text": "\u2028\n\U0001f600"}
    template = ChatTemplate.of("{{ said | tojson }}{{ said.deep[0].x + 1 }}{{ said.none }}", {})
    assert template.render(TALK, {"said": said}) == (
        '{"none": null, "deep": [{"x": 1.5}], "text": "\u2028\\n\U0001f600"}2.5None'
    )
