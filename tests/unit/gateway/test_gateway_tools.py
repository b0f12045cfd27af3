"""Chats with tools before a stand-in for Triton: what the model is told and what becomes of it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from client_double import refusal
from gateway_double import CHAT, RunningGateway, pieces_of, prompt, running_gateway
from gateway_models import directory
from guides import fits
from llguidance import LLMatcher

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "strict": True,
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
LIST: Any = {"name": "list", "parameters": {"type": "array", "items": {"type": "integer"}}}
SUNNY = {"type": "text", "text": "sunny", "cache_control": {"type": "ephemeral"}}
CALLED: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rome?"},
    {
        "role": "assistant",
        "content": None,
        "refusal": "",
        "annotations": [{}],
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            },
            {"id": "call_2", "type": "function", "function": {"name": "clock", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": [SUNNY]},
    {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
]
ANSWER = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


@pytest.mark.parametrize("size", [3, 1000])
def test_calls_arrive_whole_and_in_a_stream(
    gateway: RunningGateway, client: openai.OpenAI, size: int
) -> None:
    gateway.triton.answer = lambda _: pieces_of(ANSWER, size)
    wanted = [("weather", '{"city": "Rome"}'), ("clock", "{}")]
    whole = client.chat.completions.create(**CHAT, tools=[WEATHER, CLOCK]).choices[0]
    assert whole.message.content == "Let me see."
    assert whole.finish_reason == "tool_calls"
    calls: Any = whole.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == wanted
    with client.chat.completions.stream(**CHAT, tools=[WEATHER, CLOCK]) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.content == "Let me see."
    assert streamed.finish_reason == "tool_calls"
    calls = streamed.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == wanted


def test_tools_and_calls_are_written_out_where_the_template_knows_none(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    client.chat.completions.create(model="ensemble", messages=CALLED, tools=[WEATHER, CLOCK])
    told = prompt(gateway)
    system, _, talk = told.partition("User: Rome?\n")
    assert system.startswith("Be brief.\n\n# Tools")
    lines = system.splitlines()
    listed = lines[lines.index("<tools>") + 1 : lines.index("</tools>")]
    assert [json.loads(line)["function"]["name"] for line in listed] == ["weather", "clock"]
    assert talk == (
        'Assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n'
        "User: <tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\nnoon\n</tool_response>\nAssistant:"
    )


def test_a_template_that_knows_tools_writes_them(tmp_path: Path) -> None:
    source = """{% for tool in tools %}{{ tool.function.name }};{% endfor %}\
{% for m in messages %}{{ m.role }}:{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}\
{% if m.role == 'tool' %}={{ m.name }}{% endif %}|{% endfor %}"""
    with running_gateway(tokenizer=directory(tmp_path, chat_template=source)) as gateway:
        gateway.triton.answer = lambda _: pieces_of("x", 1)
        body = {"model": "ensemble", "messages": CALLED, "tools": [WEATHER, CLOCK]}
        assert gateway.ask("/v1/chat/completions", body)[0] == 200
        assert prompt(gateway) == (
            "weather;clock;system:Be brief.|user:Rome?|assistant:Rome|"
            "tool:sunny=weather|tool:noon=clock|"
        )


ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
SEVERAL: Any = {"parallel_tool_calls": True}


@pytest.mark.parametrize(
    ("more", "allowed", "refused"),
    [
        (SEVERAL | {"tool_choice": "required"}, [OTHER, f"{ONE}\n{OTHER}"], ["", "hello"]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [ONE], [f"{ONE}\n{OTHER}"]),
        ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, [OTHER], [ONE]),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            [ONE.replace("Rome", "</tool_call>")],
            [OTHER],
        ),
        (
            SEVERAL | {"tool_choice": "auto"},
            ["", "a < b", f"Let me see.\n{ONE}\n{OTHER} So.", "<tool_cal", '"city"'],
            ["<tool_call>", "I <tool_call>hello", ONE.replace("weather", "wether")],
        ),
        ({"parallel_tool_calls": False}, ["", f"See.\n{ONE}"], [f"{ONE}\n{OTHER}", f"{ONE} So."]),
    ],
)
def test_a_call_that_is_required_or_strict_is_held_to_a_grammar(
    gateway: RunningGateway,
    client: openai.OpenAI,
    more: Any,
    allowed: list[str],
    refused: list[str],
) -> None:
    client.chat.completions.create(**CHAT, tools=[WEATHER, CLOCK], **more)
    sent = gateway.sent()
    assert sent["guided_decoding_guide_type"][4:] == b"ebnf_grammar"
    guide = sent["guided_decoding_guide"][4:].decode()
    assert all(fits(guide, text) for text in allowed)
    wrong = [*refused, ONE.replace('"Rome"', "5"), ONE.replace("city", "town")]
    assert not any(fits(guide, text) for text in wrong)


@pytest.mark.parametrize("reads", ["messages", "messages, tools"])
def test_an_answer_holds_several_calls_by_default_where_the_template_knows_tools(
    tmp_path: Path, reads: str
) -> None:
    """A model that was not taught to call repeats its call, which agents take for a mistake."""
    path = directory(tmp_path, chat_template=f"{{{{ [{reads}] }}}}")
    with running_gateway(tokenizer=path) as gateway:
        gateway.triton.answer = lambda _: pieces_of(ONE, 1000)
        client = openai.OpenAI(base_url=gateway.url, api_key="none")
        asked: Any = {"tools": [WEATHER, CLOCK], "tool_choice": "required"}
        client.chat.completions.create(**CHAT, **asked)
        knows = "tools" in reads
        assert (
            fits(gateway.sent()["guided_decoding_guide"][4:].decode(), f"{ONE}\n{OTHER}") is knows
        )
        client.chat.completions.create(**CHAT, **asked, **SEVERAL)
        assert fits(gateway.sent()["guided_decoding_guide"][4:].decode(), f"{ONE}\n{OTHER}")
        tool: Any = {"type": "function", "name": "clock"}
        response = client.responses.create(model="ensemble", input="hello", tools=[tool])
        assert response.parallel_tool_calls is knows


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_one_call_at_a_time_ends_the_answer_behind_it(
    gateway: RunningGateway, client: openai.OpenAI, size: int
) -> None:
    """Wherever it was cut, and though an argument holds what ends a call."""
    call = ONE.replace("Rome", "</tool_call> {")
    gateway.triton.answer = lambda _: pieces_of(f"See. {call}{OTHER} So.", size)
    asked: Any = {"tools": [CLOCK], "parallel_tool_calls": False}
    whole = client.chat.completions.create(**CHAT, **asked).choices[0]
    with client.chat.completions.stream(**CHAT, **asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.message.content == "See."
        assert choice.finish_reason == "tool_calls"
        calls: Any = choice.message.tool_calls
        assert [call.function.arguments for call in calls] == ['{"city": "</tool_call> {"}']
    asked["tools"] = [{"type": "function", "name": "clock"}]
    response = client.responses.create(model="ensemble", input="hello", **asked)
    assert [item.type for item in response.output] == ["message", "function_call"]


def _always(pieces: list[Any], _: Any) -> list[Any]:
    return pieces


def test_a_required_call_that_is_cut_off_leaves_no_text(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    """Its name and the beginning of its arguments are told, as far as they are known."""
    head = ONE.index('{"city')
    asked: Any = {"tools": [WEATHER], "tool_choice": "required"}
    for end in (5, 14, head - 1, head + 1, head + 9, len(ONE)):
        pieces = pieces_of(ONE[:end], 4, "length")
        gateway.triton.answer = partial(_always, pieces)
        whole = client.chat.completions.create(**CHAT, **asked).choices[0]
        streamed = list(client.chat.completions.create(**CHAT, **asked, stream=True))
        assert not whole.message.content
        assert not any(event.choices[0].delta.content for event in streamed)
        assert whole.finish_reason == streamed[-1].choices[0].finish_reason == "length"
        calls: Any = whole.message.tool_calls or []
        told = [(call.function.name, call.function.arguments) for call in calls]
        assert told == (
            [("weather", ONE[head : min(end, ONE.index("}}") + 1)])] if end > head else []
        )
        responses: Any = {"tools": [{"type": "function", "name": "weather"}], "input": "hello"}
        response = client.responses.create(model="ensemble", tool_choice="required", **responses)
        assert response.status == "incomplete"
        assert response.output_text == ""


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "clock"}},
            },
            "tool_choice",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": LIST}]}, "tools.0.function.parameters"),
        ({"messages": [{"role": "user", "content": "", "tool_calls": CALLED[2]["tool_calls"]}]},
         "messages.0.tool_calls"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages.0.content.0.type"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(
    gateway: RunningGateway, client: openai.OpenAI, more: Any, param: str
) -> None:
    status, _, text = gateway.ask("/v1/chat/completions", CHAT | more)
    assert (status, json.loads(text)["error"]["param"].split(".function-")[0]) == (400, param)


def test_schema_when_it_cannot_be_compiled_is_refused_with_its_tool(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    wrong: Any = {
        "type": "function",
        "function": {"name": "wrong", "parameters": {"properties": {"a": {"type": "strin"}}}},
    }

    def compile(request: Any) -> list[Any]:
        guide = request.raw_input_contents[-1][4:].decode()
        found = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(guide))
        line = found.removeprefix("at ").partition("(")[0]
        said = found.partition(": ")[2].splitlines()[0]
        return [
            refusal(
                "INVALID_ARGUMENT: guided_decoding_guide cannot be compiled as ebnf_grammar: "
                f"line {line} column 1: {said}"
            )
        ]

    gateway.triton.answer = compile
    strict: Any = {"type": "function", "function": wrong["function"] | {"strict": True}}
    asked: Any
    for stream in (False, True):
        for asked in ({"tools": [CLOCK, wrong], "tool_choice": "required"}, {"tools": [strict]}):
            with pytest.raises(openai.BadRequestError, match=r'tool "wrong" .* Invalid') as caught:
                client.chat.completions.create(**CHAT, **asked, stream=stream)
            assert caught.value.param == "tools"
