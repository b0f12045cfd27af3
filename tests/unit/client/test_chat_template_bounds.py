"""A chat template is a program: what it may compute, take and write is bounded."""

from __future__ import annotations

import resource
import signal

import pytest

from card_client.chat_template import ChatTemplate, ChatTemplateError
from card_client.template_process import TEMPLATES

TALK = [{"role": "user", "content": "hello"}]
NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        (NESTED, "computes for more than 2 s"),
        (DOUBLING, "more than"),
        ("{{ 'a' * 1500000000 }}", "more than 512 MiB"),
        ("{{ [messages] * 1000000000 }}", "more than 512 MiB"),
        ("{{ '%1000000000d' % 1 }}", "more than 512 MiB"),
        ("{{ 'a' | center(1000000000) }}", "more than 512 MiB"),
        ("{{ messages[0].content.replace('', 'x' * 100000000) }}", "more than 512 MiB"),
        ("{{ (1).to_bytes(1000000000, 'big') }}", "more than 512 MiB"),
        ("{{ (messages * 99999) | map('string') | join('x' * 99999) }}", "more than 512 MiB"),
        ("{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}", "more than 4194304 characters"),
        ("{{ range(1000000000) | list }}", "Range too big"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% for m in messages %}{{ m | from_json }}{% endfor %}", "No filter named"),
    ],
)
def test_template_is_refused_when_it_breaks_a_bound(source: str, bound: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ChatTemplateError, match=bound):
        ChatTemplate.of(source, {}).render(TALK)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"
    assert ChatTemplate.of("{{ messages[0].content }}", {}).render(TALK) == "hello"


def test_template_renders_when_its_process_was_killed_before() -> None:
    template = ChatTemplate.of("{{ messages[0].content }}", {})
    process = TEMPLATES._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert template.render(TALK) == "hello"


def test_template_renders_what_json_can_say() -> None:
    said = {"none": None, "deep": [{"x": 1.5}], "text": "\u2028\n\U0001f600"}
    template = ChatTemplate.of("{{ said | tojson }}{{ said.deep[0].x + 1 }}{{ said.none }}", {})
    assert template.render(TALK, {"said": said}) == (
        '{"none": null, "deep": [{"x": 1.5}], "text": "\u2028\\n\U0001f600"}2.5None'
    )
