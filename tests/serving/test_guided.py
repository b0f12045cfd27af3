"""Texts that guides describe, on the real server: the same with speculation as without."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field
from running_doors import MODEL, running_gateway
from running_service import Refused, RunningService

from card_gateway.tools.definitions import Tool, tool_use
from card_gateway.tools.written import grammar_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
OF_SCHEMA: dict[str, Any] = {
    "guided_decoding_guide_type": "json_schema",
    "guided_decoding_guide": json.dumps(SCHEMA),
    "max_tokens": 160,
}
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": "find", "parameters": SCHEMA}})
]
OF_CALLS: dict[str, Any] = {
    "guided_decoding_guide_type": "ebnf_grammar",
    "guided_decoding_guide": grammar_of(tool_use(TOOLS, "required", None)),
    "max_tokens": 160,
}
PROMPTS = [f"def person_{place}():\n    return " for place in range(8)]
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 5}]


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_eight_guided_streams_write_what_the_target_alone_writes(
    server: RunningService, sampling: dict[str, Any]
) -> None:
    async def texts(decoding: str) -> list[str]:
        asked = (
            server.text(prompt, decoding=decoding, **OF_SCHEMA, **sampling) for prompt in PROMPTS
        )
        return list(await asyncio.gather(*asked))

    alone = [await server.text(PROMPTS[0], decoding="autoregressive", **OF_SCHEMA, **sampling)]
    alone += (await texts("autoregressive"))[1:]
    for decoding in ("card", "draft_then_verify", "pearl"):
        assert await texts(decoding) == alone
    for text in alone:
        assert list(json.loads(text)) == SCHEMA["required"]


async def test_guide_when_it_cannot_be_compiled_harms_no_other_request(
    server: RunningService,
) -> None:
    chain = "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(3000))
    hostile = {
        ("json_schema", '{"properties": {"a": {"type": "strin"}}}'): "#/properties/a",
        ("ebnf_grammar", f'start: r0\n{chain}r3000: "a"'): "simpler",
        ("regex", "a("): "character 2",
    }

    async def refused(kind: str, guide: str, said: str) -> None:
        with pytest.raises(Refused, match="INVALID_ARGUMENT: guided_decoding_guide ") as error:
            await server.text(
                "x", guided_decoding_guide_type=kind, guided_decoding_guide=guide, max_tokens=8
            )
        assert said in str(error.value)

    streams = asyncio.gather(*(server.text(prompt, max_tokens=64) for prompt in PROMPTS[:4]))
    await asyncio.gather(*(refused(*guide, said) for guide, said in hostile.items()))
    assert all(await streams)


def test_a_model_of_pydantic_comes_back_through_the_gateway(server: RunningService) -> None:
    class Item(BaseModel):
        title: Annotated[str, Field(max_length=10)]
        price: Annotated[int, Field(ge=0, le=99)]

    class Order(BaseModel):
        items: Annotated[list[Item], Field(max_length=2)]
        note: Literal["fragile"] | None

    talk: Any = [{"role": "user", "content": "Invent an order of two items."}]
    with running_gateway(server) as gateway:
        client = gateway.client()
        parsed = client.chat.completions.parse(
            model=MODEL, messages=talk, response_format=Order, temperature=0, max_tokens=600
        )
        assert isinstance(parsed.choices[0].message.parsed, Order)
        with pytest.raises(openai.BadRequestError, match="#/properties/a") as caught:
            client.chat.completions.create(
                model=MODEL,
                messages=talk,
                extra_body={"guided_json": {"properties": {"a": {"type": 1}}}},
            )
        assert caught.value.param == "guided_json"
