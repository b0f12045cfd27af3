"""The page at the gateway's root, and the trace of speculation that it draws."""

from __future__ import annotations

from typing import Any

import pytest
from client_double import response
from gateway_double import CHAT, PROMPT, events, running_gateway, tell
from real_pair import TARGET
from tokenizers import Tokenizer

KEY = "secret"
TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
DEF, SELF = (TOKENIZER.encode(text, add_special_tokens=False).ids[0] for text in ("def", " self"))
STEP = {"us": 9, "behind": 0, "queried_us": 5, "candidates": [[SELF, -1]], "drafted": 1,
        "accepted": 0, "tokens": [DEF]}  # fmt: skip
TREE = {"us": 4, "behind": 0, "known": 0, "nodes": [[SELF, -1, -0.5], [DEF, 0, -1.0]]}


def test_a_browser_gets_the_page_without_a_key_and_no_text_without_one() -> None:
    with running_gateway(page=True, api_key=KEY) as gateway:
        kinds = {"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css"}
        for path, kind in kinds.items():
            status, headers, text = gateway.ask(path)
            assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
        for path in ("/v1/models", "/metrics"):
            assert gateway.ask(path)[0] == 401
        assert gateway.ask("/v1/completions", PROMPT)[0] == 401


def test_there_is_no_page_unless_it_is_asked_for() -> None:
    with running_gateway() as gateway:
        status, _, text = gateway.ask("/")
        assert (status, text) == (404, '{"error":{"message":"GET /: Not Found","type":'
                                  '"invalid_request_error","param":null,"code":null}}')  # fmt: skip
        assert gateway.ask("/page.js")[0] == 404


@pytest.mark.parametrize("body", [PROMPT, CHAT])
def test_a_stream_that_asks_is_told_what_speculation_did(body: dict[str, Any]) -> None:
    """Each token's text once, where the event is that names it first."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    with running_gateway(tokenizer=TARGET) as gateway:
        gateway.triton.answer = lambda _: pieces()
        _, _, text = gateway.ask(path, body | {"stream": True, "return_trace": True})
        assert gateway.sent()["return_trace"] == b"\x01"
        told = [
            event["choices"][0]["trace"]
            for event in events(text)[:-1]
            if "trace" in event["choices"][0]
        ]
        assert told[0] == {"events": [TREE], "texts": {str(SELF): " self", str(DEF): "def"}}
        assert told[1] == {"events": [STEP], "texts": {}}
        _, _, text = gateway.ask(path, body | {"stream": True})
        assert "return_trace" not in gateway.sent()
        assert "trace" not in text
        refused = gateway.ask(path, body | {"return_trace": True})
        assert (refused[0], "return_trace is only allowed when stream" in refused[2]) == (400, True)


def pieces() -> list[Any]:
    """The first says nothing but what the draft did while the prompt was read."""
    waiting = response(text_output="", num_output_tokens=0, finish_reason="")
    last = response(text_output="def", num_output_tokens=1, finish_reason="length")
    tell(waiting, trace=[TREE])
    tell(last, trace=[STEP])
    return [waiting, last]


def test_without_a_tokenizer_the_trace_has_ids_alone() -> None:
    with running_gateway() as gateway:
        gateway.triton.answer = lambda _: pieces()
        _, _, text = gateway.ask("/v1/completions", PROMPT | {"stream": True, "return_trace": True})
        first = events(text)[0]["choices"][0]["trace"]
        assert first == {"events": [TREE], "texts": {}}
