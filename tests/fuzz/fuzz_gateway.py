"""Hostile JSON to every endpoint of the gateway, in this process, before a stand-in for Triton."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

import httpx2
from client_double import response, served
from hostile_values import FLOATS, INTEGERS
from hypothesis import strategies as st
from pydantic import BaseModel
from real_pair import TARGET
from trying import try_inputs

from card_gateway import Gateway, create_app
from card_gateway.body import ChatBody, CompletionBody
from card_gateway.limits import IGNORED, NOT_OFFERED
from card_gateway.operations import DetokenizeBody, TokenizeBody
from card_gateway.responses.body import ResponseBody

EXAMPLE_S = 5.0
"""For one answer, which takes milliseconds."""

_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "auto", "required", "none", "ensemble", "user", "tool", "function"]),
    st.sampled_from(["\ud800", "\0", "[" * 300, '{"a":' * 300, '{"a": NaN}', "9" * 5000, "{}"]),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=2), INTEGERS.map(
        lambda number: abs(number) % 3000
    )),
)  # fmt: skip
_NUMBER = st.one_of(INTEGERS, FLOATS, st.sampled_from([10**30, 1 << 31, -1, 0, 1, 0.5, 2]))
_ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBER, _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=6,
)
_SCHEMA = st.one_of(
    st.just({"type": "object", "properties": {"a": {"type": "integer"}}}),
    st.dictionaries(st.sampled_from(["type", "properties", "enum", "$ref", "$defs", "x"]), _ANY),
)
_FUNCTION = {"name": _TEXT, "arguments": _TEXT, "parameters": _SCHEMA, "strict": st.booleans()}
_WORDS: dict[str, st.SearchStrategy[Any]] = {
    "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"]),
    "type": st.sampled_from(
        ["function", "text", "input_text", "output_text", "refusal", "message", "function_call",
         "function_call_output", "item_reference", "reasoning", "json_schema", "json_object",
         "content", "allowed_tools"]
    ),
    "text": _TEXT, "content": _TEXT, "name": _TEXT, "arguments": _TEXT, "call_id": _TEXT,
    "id": _TEXT, "tool_call_id": _TEXT, "output": _TEXT, "mode": _TEXT, "schema": _SCHEMA,
    "parameters": _SCHEMA, "refusal": _TEXT, "include_usage": st.booleans(),
    "function": st.fixed_dictionaries({}, optional=_FUNCTION),
}  # fmt: skip
"""Names that objects inside a body have."""


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    nested = {
        name: st.one_of(st.lists(inner, max_size=2), inner)
        for name in ("content", "tool_calls", "tools", "function", "format", "json_schema")
    }
    likely = st.fixed_dictionaries({}, optional={**_WORDS, **nested, "other": _ANY})
    return st.one_of(likely, _ANY, st.lists(likely, max_size=3))


_VALUE = st.one_of(_objects(_objects(_ANY)), _NUMBER, _TEXT, st.booleans())
_MESSAGE = st.fixed_dictionaries({}, optional={**_WORDS, "content": _VALUE})


def _bodies(kind: type[BaseModel], sound: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A sound body with some fields replaced."""
    names = [*kind.model_fields, *IGNORED, *NOT_OFFERED, "unknown"]
    talk = st.lists(_MESSAGE, max_size=3)
    tools = st.lists(st.fixed_dictionaries({"type": st.just("function")}, optional={
        **_FUNCTION, "function": st.fixed_dictionaries({}, optional=_FUNCTION)
    }), max_size=2)  # fmt: skip
    bias = st.dictionaries(st.one_of(_TEXT, INTEGERS.map(str)), _NUMBER, max_size=3)
    likely = {"messages": talk, "input": talk, "tools": tools, "logit_bias": bias}
    changed = st.sampled_from(names).flatmap(
        lambda name: st.tuples(st.just(name), st.one_of(likely.get(name, _VALUE), _VALUE))
    )
    changes = st.lists(changed, max_size=4).map(dict)
    return changes.map(lambda found: {**sound, **found})


_MODEL = {"model": "ensemble"}
_REQUESTS = st.one_of(
    *(
        st.tuples(st.just(path), _bodies(kind, sound))
        for path, kind, sound in (
            ("/v1/completions", CompletionBody, _MODEL | {"prompt": "x"}),
            ("/v1/chat/completions", ChatBody, _MODEL | {"messages": []}),
            ("/v1/responses", ResponseBody, _MODEL | {"input": "x"}),
            ("/tokenize", TokenizeBody, {"prompt": "x"}),
            ("/detokenize", DetokenizeBody, {"tokens": [1]}),
        )
    ),
    st.tuples(
        st.sampled_from(["/v1/completions", "/v1/responses", "/tokenize"]),
        st.one_of(_ANY, st.binary(max_size=40)),
    ),
)


def fuzz_gateway(seed: int, examples: int) -> int:
    """Any body is answered or refused as the client's mistake, within `EXAMPLE_S`."""
    with served() as triton, closing(asyncio.new_event_loop()) as loop:
        triton.answer = lambda _: [response(text_output="x", finish_reason="stop")]
        app = create_app(Gateway(triton=triton.address, tokenizer=TARGET))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")

        async def ask(path: str, body: Any) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = await asyncio.wait_for(
                client.post(path, content=content, headers={"Content-Type": "application/json"}),
                EXAMPLE_S,
            )
            if answer.status_code not in (200, 400, 404):
                raise AssertionError(f"{answer.status_code} of {path}: {answer.text[:500]}")

        def check(request: tuple[str, Any]) -> None:
            loop.run_until_complete(ask(*request))

        tried = try_inputs(_REQUESTS, check, seed=seed, examples=examples)
        loop.run_until_complete(client.aclose())
        return tried
