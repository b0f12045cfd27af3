"""The largest and worst JSON body of every endpoint, at the gateway's own limit, and small ones
that programs trip over."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from card_gateway.app import Gateway

MODEL = "ensemble"
_CHAT, _TEXT, _RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_ASKED = '"max_tokens":1,"messages":['
_SCHEMA = '{"type":"json_schema","json_schema":{"name":"x","schema":{"enum":['
_CYCLE = {"$ref": "#/$defs/T"}

Make = Callable[[], bytes]


def _fill(fields: str, unit: str, end: str = "]") -> Make:
    """A body that repeats `unit` behind `fields` until it is as large as the gateway takes."""
    head = f'{{"model":"{MODEL}",{fields}'
    count = (Gateway.body_bytes - len(head) - len(end) - 1) // len(unit)
    return lambda: (head + (unit * count).rstrip(",") + end + "}").encode()


def _chat(**fields: Any) -> Make:
    messages = [{"role": "user", "content": "x"}]
    body = {"model": MODEL, "max_tokens": 1, "messages": messages, **fields}
    return lambda: json.dumps(body).encode()


def _tool(**parameters: Any) -> Make:
    function = {"name": "f", "parameters": {"type": "object", **parameters}}
    return _chat(tools=[{"type": "function", "function": function}], tool_choice="required")


def _called(arguments: str) -> Make:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return _chat(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}])


LARGE: dict[str, tuple[str, Make]] = {
    "wrong messages": (_CHAT, _fill(_ASKED, "1,")),
    "empty messages": (_CHAT, _fill(_ASKED, '{"role":"user","content":""},')),
    "tool messages": (_CHAT, _fill(_ASKED, '{"role":"tool","content":"","tool_call_id":""},')),
    "one long message": (_CHAT, _fill(_ASKED + '{"role":"user","content":"', "ab c ", '"}]')),
    "empty enums": (
        _CHAT,
        _fill(
            f'{_ASKED}{{"role":"user","content":"x"}}],"response_format":{_SCHEMA}', "[],", "]}}}"
        ),
    ),
    "negative ids": (_TEXT, _fill('"prompt":[', "-1,")),
    "empty prompts": (_TEXT, _fill('"prompt":[', "[],")),
    "stop strings": (_TEXT, _fill('"max_tokens":1,"prompt":"a","stop":[', '"x",')),
    "biases": (_TEXT, _fill('"max_tokens":1,"prompt":"a","logit_bias":{', '"7":0,', "}")),
    "wrong items": (_RESPONSE, _fill('"input":[', "1,")),
    "calls": (
        _RESPONSE,
        _fill('"input":[', '{"type":"function_call","call_id":"","name":"f","arguments":""},'),
    ),
    "one long word": ("/tokenize", _fill('"prompt":"', "a", '"')),
    "many words": ("/tokenize", _fill('"return_token_strs":true,"prompt":"', "ab c ", '"')),
    "many ids": ("/detokenize", _fill('"tokens":[', "9,")),
    "wrong ids": ("/detokenize", _fill('"tokens":[', "-1,")),
}
"""By name: the path, and what makes the body."""

BOMBS: dict[str, tuple[str, Make]] = {
    "brackets in arguments": (_CHAT, _called("[" * 100_000)),
    "NaN in arguments": (_CHAT, _called('{"x": NaN}')),
    "brackets": (_CHAT, lambda: b"[" * 100_000),
    "surrogate in a message": (_CHAT, _chat(messages=[{"role": "user", "content": "\ud800"}])),
    "surrogate in a tool": (_CHAT, _tool(description="\ud800")),
    "NaN in a tool": (_CHAT, _tool(x=float("nan"))),
    "cyclic tool": (_CHAT, _tool(properties={"t": _CYCLE}, **{"$defs": {"T": _CYCLE}})),
    "infinite temperature": (_CHAT, _chat(temperature=float("inf"))),
    "endless number": (_CHAT, lambda: b'{"model":"ensemble","max_tokens":' + b"9" * 10_000 + b"}"),
    "no UTF-8": (_CHAT, lambda: b'{"model":"\xff"}'),
}


@functools.cache
def made(name: str) -> tuple[str, bytes]:
    """The path and the body of one of `LARGE` or `BOMBS`."""
    path, make = (LARGE | BOMBS)[name]
    return path, make()
