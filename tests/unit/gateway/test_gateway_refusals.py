"""The gateway before a stand-in for Triton: what it refuses, whom it keeps out, what it cancels."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import openai
import pytest
from client_double import refusal, response
from gateway_double import (
    CHAT,
    LIMIT_S,
    PROMPT,
    RunningGateway,
    running_gateway,
    two_pieces,
)

NOT_OFFERED: list[tuple[str, Any]] = [
    ("n", 129),
    ("min_p", 1.5),
    ("top_k", -2),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"9" * 5000: 1}),
    ("stop_token_ids", [-1]),
    ("prediction", {"type": "content"}),
    ("skip_special_tokens", False),
    ("use_beam_search", True),
    ("prompt_logprobs", 0),
    ("truncate_prompt_tokens", 5),
    ("suffix", "x"),
    ("tools", [{"type": "function"}]),
    ("logprobs", 21),
    ("prompt", [[]]),
    ("prompt", ""),
    ("stop", 5),
    ("max_completion_tokens", 5),
    ("temperature", 2.5),
    ("top_p", 0),
    ("max_tokens", 0),
    ("seed", 1 << 64),
    ("presence_penalty", 3),
    ("stream_options", {"include_usage": True}),
    ("bogus", 1),
]


@pytest.mark.parametrize(("name", "value"), NOT_OFFERED)
def test_what_is_not_offered_is_refused_by_name(
    gateway: RunningGateway, client: openai.OpenAI, name: str, value: Any
) -> None:
    seen = len(gateway.triton.requests)
    status, _, text = gateway.ask("/v1/completions", PROMPT | {name: value})
    error = json.loads(text)["error"]
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"].split(".")[0] == name
    assert name in error["message"]
    assert len(gateway.triton.requests) == seen


NEUTRAL: list[tuple[str, list[Any]]] = [
    ("n", [1, None]),
    ("echo", [False, None]),
    ("min_p", [0, 0.0, None]),
    ("top_k", [-1, 0, None]),
    ("length_penalty", [1, 0.5, None]),
    ("repetition_penalty", [1, 1.0]),
    ("logit_bias", [{}, None]),
    ("stop", [[], None]),
    ("skip_special_tokens", [True]),
    ("include_stop_str_in_output", [False]),
    ("repeat_penalty", [1, 1.0]),
    ("guided_json", [None]),
    ("unheard_of", [None, [], {}, ""]),
    ("ignore_eos", [False]),
    ("prediction", [None, {"type": "content", "content": ""}]),
    ("stream_options", [{}, {"include_usage": False}]),
    ("store", [True, False, None]),
    ("service_tier", ["flex", "auto", None]),
]


@pytest.mark.parametrize(("name", "values"), NEUTRAL)
def test_what_asks_for_nothing_changes_nothing(
    gateway: RunningGateway, name: str, values: list[Any]
) -> None:
    neutral = dict.fromkeys(("top_k", "length_penalty", "min_p", "repetition_penalty"), b"")
    gateway.ask("/v1/completions", PROMPT)
    plain = gateway.sent() | neutral
    for value in values:
        status, _, text = gateway.ask("/v1/completions", PROMPT | {name: value})
        assert status == 200, text
        assert gateway.sent() | neutral == plain


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max-tokens": 5}, "max-tokens"),
        ({"max tokens": 5}, "max tokens"),
        ({"str": 5}, "str"),
        ({"body": 5}, "body"),
        ({"": 5}, ""),
        ({"nvext": {"top-k": 5}}, "nvext.top-k"),
    ],
)
def test_field_when_it_is_unknown_is_refused_by_its_name(
    gateway: RunningGateway, body: dict[str, Any], param: str
) -> None:
    status, _, text = gateway.ask("/v1/completions", PROMPT | body)
    error = json.loads(text)["error"]
    assert (status, error["param"], error["code"]) == (400, param, "unknown_parameter")


def test_a_body_that_is_no_json_object_is_refused(gateway: RunningGateway) -> None:
    for body in (b"{", b"[]", b"null", b"\xff"):
        status, _, text = gateway.ask("/v1/completions", body)
        assert status == 400
        assert json.loads(text)["error"]["type"] == "invalid_request_error"
    status, _, text = gateway.ask(
        "/v1/completions", PROMPT, {"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert status == 400
    assert "Content-Type: application/json" in json.loads(text)["error"]["message"]


def test_what_is_no_http_is_refused_once_and_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Though the request before the broken body would have an answer of its own."""
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    with running_gateway() as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), LIMIT_S) as client:
            client.sendall(request)
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert gateway.ask("/v1/models")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_an_unknown_model_and_an_unknown_route_are_404(gateway: RunningGateway) -> None:
    status, _, text = gateway.ask("/v1/completions", PROMPT | {"model": "gpt-4"})
    assert status == 404
    assert json.loads(text)["error"]["code"] == "model_not_found"
    status, _, text = gateway.ask("/v1/embeddings", {})
    assert status == 404
    assert "/v1/embeddings" in json.loads(text)["error"]["message"]
    status, headers, _ = gateway.ask("/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")


# --- errors of Triton --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "param"),
    [
        ("INVALID_ARGUMENT: min_tokens is 99; it must be less", 400, "min_tokens"),
        ("INVALID_ARGUMENT: stop_words is ['']; it must be fewer", 400, "stop"),
        ("UNAVAILABLE: all 16 slots are taken and the queue is full", 503, None),
        ("DEADLINE_EXCEEDED: timeout is over while decoding", 504, None),
        ("INTERNAL: the engine ended", 500, None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_of_triton_have_a_status_and_openais_shape(
    gateway: RunningGateway, words: str, status: int, param: str | None, stream: bool
) -> None:
    gateway.triton.answer = lambda _: [refusal(words)]
    given, headers, text = gateway.ask("/v1/completions", PROMPT | {"stream": stream})
    error = json.loads(text)["error"]
    assert given == status
    assert error["message"] == words.partition(": ")[2]
    assert error["param"] == param
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert ("retry-after" in headers) == (status == 503)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_that_waits_in_vain_has_the_status_of_its_refusal(
    gateway: RunningGateway, path: str
) -> None:
    """Who waits for a slot gets empty deltas, which are no beginning of an answer."""
    sign = response(text_output="", finish_reason="", num_output_tokens=0, num_input_tokens=0)
    gateway.triton.answer = lambda _: [sign, sign, refusal("UNAVAILABLE: no slot within 30 s")]
    body = PROMPT if path == "/v1/completions" else CHAT
    status, headers, text = gateway.ask(path, body | {"stream": True})
    assert status == 503
    assert "retry-after" in headers
    assert json.loads(text)["error"]["message"] == "no slot within 30 s"


def test_an_error_after_the_first_piece_stands_in_the_stream(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    gateway.triton.answer = lambda _: [two_pieces()[0], refusal("INTERNAL: it broke")]
    stream = client.completions.create(**PROMPT, stream=True)
    assert next(stream).choices[0].text == "héllo"
    with pytest.raises(openai.APIError, match="it broke"):
        next(stream)


def test_a_triton_that_is_not_there_is_503_and_not_healthy(tmp_path: Path) -> None:
    with running_gateway(triton="127.0.0.1:1") as gateway:
        status, _, text = gateway.ask("/v1/completions", PROMPT)
        assert status == 503
        assert "cannot reach" in json.loads(text)["error"]["message"]
        assert gateway.ask("/health")[0] == 503


# --- keys and leaving --------------------------------------------------------------------------


def test_a_key_is_asked_for_where_one_is_set() -> None:
    with running_gateway(api_key="secret") as gateway:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            status, headers, text = gateway.ask("/v1/completions", b"{", header)
            assert status == 401
            assert headers["www-authenticate"] == "Bearer"
            assert json.loads(text)["error"]["code"] == "invalid_api_key"
        assert gateway.triton.requests == []
        for scheme in ("Bearer", "bearer"):
            right = {"Authorization": f"{scheme} secret"}
            assert gateway.ask("/v1/models", headers=right)[0] == 200
        assert gateway.ask("/health")[0] == 200


@pytest.mark.parametrize(("stream", "first_piece"), [(True, True), (False, False)])
def test_request_when_its_client_leaves_is_cancelled_on_triton(
    stream: bool, first_piece: bool
) -> None:
    with running_gateway() as gateway:
        gateway.triton.hold(*(two_pieces()[:1] if first_piece else ()))
        connection = gateway.connect()
        body = json.dumps(PROMPT | {"stream": stream})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert gateway.triton.wait_until_arrived()
        if stream and first_piece:
            assert connection.getresponse().read(10)
        assert not gateway.triton.client_left.is_set()
        connection.close()
        assert gateway.triton.wait_until_client_left()
