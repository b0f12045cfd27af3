"""What a text must be, as clients of OpenAI and vLLM ask for it, before a stand-in for Triton."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client_double import refusal
from gateway_double import CHAT, PROMPT, RunningGateway
from guides import fits

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "additionalProperties": False,
}
OBJECT: dict[str, Any] = {"type": "object"}
TIGHT = SCHEMA | {"x-guidance": {"whitespace_flexible": False}}


def asked(gateway: RunningGateway) -> tuple[str | None, Any]:
    """Kind and guide of the last request that reached Triton, JSON read."""
    sent = gateway.sent()
    if "guided_decoding_guide_type" not in sent:
        return None, None
    text = sent["guided_decoding_guide"][4:].decode()
    kind = sent["guided_decoding_guide_type"][4:].decode()
    return kind, json.loads(text) if kind in ("json_schema", "choice") else text


@pytest.mark.parametrize(
    ("fields", "kind", "guide"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_schema", OBJECT),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            SCHEMA,
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            SCHEMA,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_schema", OBJECT),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            "json_schema",
            TIGHT,
        ),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["é", "b"]}}, "choice", ["é", "b"]),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "ebnf_grammar", 'root ::= "a"'),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"guided_regex": "a+", "guided_decoding_backend": "outlines"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"guided_grammar": 'start: "a"'}, "ebnf_grammar", 'start: "a"'),
        ({"nvext": {"guided_json": SCHEMA}}, "json_schema", SCHEMA),
        ({"nvext": {"guided_regex": "a+", "top_k": 2}}, "regex", "a+"),
        ({"nvext": {"guided_choice": ["a", "b"]}}, "choice", ["a", "b"]),
        ({"nvext": {"guided_grammar": 'start: "a"'}}, "ebnf_grammar", 'start: "a"'),
        ({"guided_choice": [], "structured_outputs": {"choice": [], "regex": ""}}, None, None),
    ],
)
def test_every_way_to_ask_becomes_a_guide(
    gateway: RunningGateway, fields: dict[str, Any], kind: str | None, guide: Any
) -> None:
    for route, body in (("chat/completions", CHAT), ("completions", PROMPT)):
        status, _, text = gateway.ask(f"/v1/{route}", body | fields)
        assert status == 200, text
        assert asked(gateway) == (kind, guide)


def test_a_response_is_asked_for_by_its_format(gateway: RunningGateway) -> None:
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    body = {"model": "ensemble", "input": "hello", "text": wanted}
    status, _, _ = gateway.ask("/v1/responses", body)
    assert status == 200
    assert asked(gateway) == ("json_schema", SCHEMA)
    said = "guided_decoding_guide cannot be compiled as json_schema: at #: Invalid type"
    gateway.triton.answer = lambda _: [refusal(f"INVALID_ARGUMENT: {said}")]
    status, _, text = gateway.ask("/v1/responses", body)
    assert (status, json.loads(text)["error"]["param"]) == (400, "text.format")


def test_beside_tools_the_answer_is_of_the_schema_or_calls(gateway: RunningGateway) -> None:
    tool = {"type": "function", "function": {"name": "clock"}}
    gateway.ask("/v1/chat/completions", CHAT | {"tools": [tool], "guided_json": SCHEMA})
    kind, guide = asked(gateway)
    assert kind == "ebnf_grammar"
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    assert fits(guide, '{"a": 5}')
    assert fits(guide, call)
    assert not fits(guide, "hello")
    assert not fits(guide, call + '{"a": 5}')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"guided_regex": "a", "nvext": {"guided_choice": ["b"]}}, "nvext.guided_choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    gateway: RunningGateway, fields: dict[str, Any], param: str
) -> None:
    status, _, text = gateway.ask("/v1/chat/completions", CHAT | fields)
    assert status == 400
    assert json.loads(text)["error"]["param"] == param
