"""Chat templates: the tokenizer's own where there is one, a plain transcript otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_double import CHAT, PROMPT, prompt, running_gateway, two_pieces
from gateway_models import LLAMA, TALK, directory

from card_client.chat_template import ChatTemplate, ChatTemplateError
from card_gateway.template import read_model


def template_of(folder: Path) -> ChatTemplate:
    return read_model(folder)[0]


def test_a_request_gives_the_template_variables(tmp_path: Path) -> None:
    source = "{{ reasoning_effort }} {{ mood }}"
    with running_gateway(tokenizer=directory(tmp_path, chat_template=source)) as gateway:
        more: dict[str, Any] = {"chat_template_kwargs": {"mood": "calm"}}
        chat = CHAT | more | {"reasoning_effort": "low"}
        assert gateway.ask("/v1/chat/completions", chat)[0] == 200
        assert prompt(gateway) == "low calm"
        response = more | {"model": "ensemble", "input": "hello", "reasoning": {"effort": "high"}}
        assert gateway.ask("/v1/responses", response)[0] == 200
        assert prompt(gateway) == "high calm"


def test_a_token_that_the_tokenizer_adds_is_not_written_twice(tmp_path: Path) -> None:
    plain, adding = (
        template_of(directory(tmp_path, adds_bos=adds, chat_template=LLAMA)).render(TALK)
        for adds in (False, True)
    )
    assert plain == f"<s>{adding}"
    assert adding.startswith("<system>")


def test_a_file_of_its_own_wins_and_a_list_gives_its_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ x }}"}]
    folder = directory(tmp_path, chat_template=named)
    assert template_of(folder).render(TALK, {"x": "from the list"}) == "from the list"
    (folder / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert template_of(folder).render(TALK) == "from the file"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 + 'x' }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_says_so(tmp_path: Path, source: str) -> None:
    template = template_of(directory(tmp_path, chat_template=source))
    with pytest.raises(ChatTemplateError, match=r"the chat template refuses these messages: ."):
        template.render(TALK)


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' * 1500000000 }}"])
def test_a_template_that_cannot_be_used_refuses_chats_alone(tmp_path: Path, source: str) -> None:
    folder = directory(tmp_path, chat_template=source)
    with pytest.raises(ChatTemplateError, match=f"{tmp_path}: wrong chat template"):
        template_of(folder).render(TALK)
    with running_gateway(tokenizer=folder) as gateway:
        gateway.triton.answer = lambda _: two_pieces()
        status, _, text = gateway.ask("/v1/chat/completions", CHAT)
        assert (status, json.loads(text)["error"]["param"]) == (400, "messages")
        assert gateway.ask("/v1/completions", PROMPT)[0] == 200
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ChatTemplateError, match=r"tokenizer_config\.json cannot be read"):
        template_of(tmp_path)


def test_what_is_written_for_training_and_what_asks_for_none_renders(tmp_path: Path) -> None:
    source = """\
{% if tools is not none or documents is not none %}{{ 1 / 0 }}{% endif %}
{%- for message in messages %}
    {%- generation %}
        {%- set shown = message.content | upper %}
        {{- shown }}
    {%- endgeneration %}
{%- endfor %}"""
    assert template_of(directory(tmp_path, chat_template=source)).render(TALK) == (
        "BE BRIEF.HÉ?YES.WHY?"
    )
