"""The gateway before a stand-in for Triton: what one client sends costs no other."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_double import Request, response
from gateway_double import (
    CHAT,
    LIMIT_S,
    PROMPT,
    RunningGateway,
    pieces_of,
    running_gateway,
    scored,
    tell,
)
from prometheus_client.parser import text_string_to_metric_families
from real_pair import TARGET

from card_gateway import events, generation
from card_gateway.body import CompletionBody
from card_gateway.errors import ApiError
from card_gateway.limits import MOST_TOKENIZED_BYTES, MOST_TOOLS
from card_gateway.reading import parsed
from card_gateway.responses.body import LOG_PROBABILITIES

RESPONSE: dict[str, Any] = {"model": "ensemble", "input": "hello"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}


@pytest.fixture(scope="module")
def whole() -> Iterator[RunningGateway]:
    """A gateway with its own bounds."""
    with running_gateway(tokenizer=TARGET) as gateway:
        yield gateway


def raw(gateway: RunningGateway, request: bytes) -> bytes:
    """Everything that comes back until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), LIMIT_S) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(4096), b""))


def head(method: str, target: str, host: str = "localhost") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PROMPT | {"echo": True, "logprobs": 20}),
        ("/v1/responses", RESPONSE | {"include": [LOG_PROBABILITIES], "top_logprobs": 20}),
    ],
)
def test_stream_goes_on_beside_when_an_answer_is_megabytes_of_log_probabilities(
    whole: RunningGateway, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    loops: list[bool] = []

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            loops.append(asyncio._get_running_loop() is not None)
            return work(*arguments)

        return noted

    monkeypatch.setattr(generation, "read_details", noting(generation.read_details))
    monkeypatch.setattr(events, "json_in_steps", noting(events.json_in_steps))
    many = [scored(token, -0.5, *((rival, -1.0) for rival in range(20))) for token in range(300)]
    (piece,) = pieces_of("x" * 300, 300)
    tell(piece, prompt=many, tokens=many)
    whole.triton.answer = lambda _: [piece]
    status, _, text = whole.ask(path, body | {"stream": True})
    assert (status, text.count('"logprobs"') > 0) == (200, True)
    assert len(loops) > 1
    assert not any(loops)


# --- series --------------------------------------------------------------------------------------


def test_metrics_have_no_series_when_clients_invent_names(whole: RunningGateway) -> None:
    def series() -> set[tuple[str, str]]:
        page = whole.ask("/metrics")[2]
        return {
            (sample.name, json.dumps(sample.labels))
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    routes = ["/v1/completions", "/v1/models", "/v1/models/x", "/health", "/metrics", "/version"]
    routes += ["/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize", "/none"]

    def invent(name: str) -> None:
        whole.triton.answer = lambda _: [response(text_output="x", finish_reason=name)]
        whole.ask("/v1/completions", PROMPT)
        whole.ask(f"/v1/{name}", None, {"X-Request-Id": name})
        for route in routes:
            assert raw(whole, head(name, route)).startswith(b"HTTP/1.1 40")
            raw(whole, head("GET", f"{route}?{name}={name}"))

    invent("FIRST")
    before = series()
    for number in range(5):
        invent(f"NAME{number}")
    assert series() == before


# --- counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"messages": [1] * 300_000}, "messages"),
        ("/v1/chat/completions", CHAT | {"messages": CHAT["messages"] * 5000}, "messages"),
        (
            "/v1/chat/completions",
            CHAT | {"messages": [{"role": "user", "content": [{}] * 5000}]},
            "messages.0.content",
        ),
        (
            "/v1/chat/completions",
            CHAT | {"messages": [{"role": "assistant", "tool_calls": [CALL] * 5000}]},
            "messages.0.tool_calls",
        ),
        ("/v1/chat/completions", CHAT | {"tools": [TOOL] * (MOST_TOOLS + 1)}, "tools"),
        ("/v1/completions", PROMPT | {"prompt": [-1] * 200_000}, "prompt.0"),
        ("/v1/completions", PROMPT | {"prompt": [[]] * 200_000}, "prompt.0"),
        ("/v1/completions", PROMPT | {"stop": ["x"] * 200_000}, "stop"),
        ("/v1/completions", PROMPT | {"stop": [0] * 50_000}, "stop.0"),
        ("/v1/completions", PROMPT | {"bad_words": [0] * 50_000}, "bad_words.0"),
        ("/v1/completions", PROMPT | {"guided_choice": [0] * 50_000}, "guided_choice.0"),
        ("/v1/completions", PROMPT | {"logit_bias": dict.fromkeys(range(70_000))}, "logit_bias"),
        ("/v1/completions", PROMPT | {"prompt": ["x"] * 2000}, "prompt"),
        ("/v1/completions", PROMPT | {str(name): 0 for name in range(300)}, None),
        ("/v1/completions", PROMPT | {"nvext": {str(name): 0 for name in range(300)}}, "nvext"),
        ("/v1/responses", RESPONSE | {"input": [1] * 300_000}, "input"),
        ("/v1/responses", RESPONSE | {"input": [1] * 1000}, "input.0"),
        ("/detokenize", {"tokens": [9] * 300_000}, "tokens"),
        ("/detokenize", {"tokens": [-1] * 1000}, "tokens.0"),
        ("/tokenize", {"prompt": "x" * (MOST_TOKENIZED_BYTES + 1)}, "prompt"),
        ("/tokenize", {"messages": [1] * 300_000}, "messages"),
    ],
)  # fmt: skip
def test_request_is_refused_by_its_field_when_it_holds_too_much(
    whole: RunningGateway, path: str, body: dict[str, Any], param: str | None
) -> None:
    seen = len(whole.triton.requests)
    status, _, text = whole.ask(path, body)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, param), error
    assert len(error["message"]) < 400
    assert len(whole.triton.requests) == seen


def test_search_for_a_wrong_value_copies_no_names_when_they_are_long() -> None:
    """Of a body of 40 kB with a name of 20 kB; once the name for each of 10,000 values: 200 MB."""
    name = b"a" * 20_000
    body = b'{"wrong": "\\ud800", "' + name + b'": [' + b"0," * 10_000 + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            parsed(body, CompletionBody)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.param == "wrong"
    assert most < 100 * len(body)


def test_guide_is_made_and_held_once_when_there_are_many_prompts() -> None:
    schema = {"enum": [str(place) for place in range(1000)]}
    body = CompletionBody(**PROMPT | {"prompt": ["a", "b", "c"]}, guided_json=schema)
    requests = body.generate_requests()
    assert [request.text_input for request in requests] == ["a", "b", "c"]
    assert len({id(request.guided_decoding_guide) for request in requests}) == 1
    ids = CompletionBody(**PROMPT | {"prompt": [[1, 2], [3]]}).generate_requests()
    assert [request.input_ids for request in ids] == [[1, 2], [3]]


def test_body_is_refused_when_it_is_larger_than_the_default(whole: RunningGateway) -> None:
    status, _, text = whole.ask("/v1/completions", PROMPT | {"user": "x" * (1 << 20)})
    assert (status, "at most 1048576 bytes" in text) == (413, True)


def test_one_request_has_one_deadline_when_it_has_many_texts() -> None:
    slow = threading.Event()

    def answer(_: Request) -> Any:
        slow.wait(0.2)
        return [response(text_output="x", finish_reason="stop")]

    with running_gateway(timeout_s=1.0, at_once=1) as gateway:
        gateway.triton.answer = answer
        status, _, _ = gateway.ask("/v1/completions", PROMPT | {"n": 64})
        assert status == 504
        assert len(gateway.triton.requests) < 10
        assert max(filter(None, gateway.triton.deadlines_s)) <= 1.5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PROMPT | {"n": 128, "max_tokens": 4096}),
        ("/v1/completions", PROMPT | {"prompt": ["x"] * 512, "max_tokens": 1024}),
        ("/v1/chat/completions", CHAT | {"n": 128, "max_completion_tokens": 4096}),
    ],
)
def test_request_is_refused_when_its_texts_together_are_too_long(
    whole: RunningGateway, path: str, body: dict[str, Any]
) -> None:
    status, _, text = whole.ask(path, body)
    assert (status, json.loads(text)["error"]["param"]) == (400, "max_tokens")
    assert whole.ask("/v1/completions", PROMPT | {"max_tokens": 1 << 20})[0] == 200


# --- what is no JSON -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            '{"model":"ensemble","messages":[{"role":"assistant","tool_calls":[{"id":"1",'
            '"function":{"name":"f","arguments":"' + "[" * 100_000 + '"}}]}]}',
            "messages.0.tool_calls.0.function.arguments",
        ),
        ("/v1/completions", '{"model":"ensemble","prompt":' + "[" * 100_000 + "}", None),
        (
            "/v1/responses",
            '{"model":"ensemble","input":"x","tools":[{"type":"function","name":"f","parameters":'
            '{"type":"object","x":NaN}}]}',
            "tools.0.parameters.x",
        ),
        (
            "/v1/responses",
            '{"model":"ensemble","input":"x","tools":[{"type":"function","name":"f","parameters":'
            '{"type":"object","x":1e999}}]}',
            "tools.0.parameters.x",
        ),
        (
            "/v1/chat/completions",
            '{"model":"ensemble","messages":[{"role":"user","content":"\\ud800"}]}',
            "messages.0.content",
        ),
        ("/tokenize", '{"prompt":"\\ud800"}', "prompt"),
    ],
)
def test_body_is_refused_by_its_field_when_it_is_no_json(
    whole: RunningGateway, path: str, body: str, param: str | None
) -> None:
    status, _, text = whole.ask(path, body.encode())
    assert (status, json.loads(text)["error"]["param"]) == (400, param), text


# --- hosts and connections -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9000", b"200"), ("127.0.0.1", b"200"), ("[::1]:9000", b"200"),
        ("gateway.example", b"200"), ("evil.example", b"403"), ("127.0.0.1.evil.example", b"403"),
        ("10.0.0.1", b"403"), ("", b"403"), ("[", b"403"),
    ],
)  # fmt: skip
def test_host_is_answered_when_it_is_this_machine_or_configured(host: str, status: bytes) -> None:
    with running_gateway(allowed_hosts=("gateway.example",)) as gateway:
        assert raw(gateway, head("GET", "/v1/models", host)).split()[1] == status
        assert raw(gateway, head("GET", "/health", host)).split()[1] == b"200"


def test_host_is_not_looked_at_when_there_is_a_key() -> None:
    with running_gateway(api_key="secret") as gateway:
        headers = {"Host": "evil.example", "Authorization": "Bearer secret"}
        assert gateway.ask("/v1/models", None, headers)[0] == 200
    with running_gateway(allowed_hosts=("*",)) as gateway:
        assert gateway.ask("/v1/models", None, {"Host": "evil.example"})[0] == 200


def test_absolute_target_is_answered_as_its_path(whole: RunningGateway) -> None:
    assert raw(whole, head("GET", "http://localhost/v1/models")).split()[1] == b"200"
    assert raw(whole, head("GET", "http://evil.example/v1/models")).split()[1] == b"403"
    assert raw(whole, head("GET", "http://[/v1/models")).split()[1] == b"404"


def test_silent_connections_make_room_when_as_many_are_open_as_may_be() -> None:
    with running_gateway(requests=8) as gateway:
        silent = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(20)]
        begun = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(20)]
        for connection in begun:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
        assert gateway.ask("/health")[0] == 200
        assert gateway.ask("/v1/completions", PROMPT)[0] == 200
        for connection in (*silent, *begun):
            connection.close()


def test_health_is_answered_when_as_many_requests_are_open_as_may_be() -> None:
    with running_gateway(requests=1) as gateway:
        gateway.triton.hold()
        connection = gateway.connect()
        connection.request(
            "POST", "/v1/completions", json.dumps(PROMPT), {"Content-Type": "application/json"}
        )
        assert gateway.triton.wait_until_arrived()
        status, headers, text = gateway.ask("/v1/completions", PROMPT)
        assert (status, "retry-after" in headers, "--connections" in text) == (503, True, True)
        assert gateway.ask("/health")[0] == 200
        connection.close()


def test_body_in_chunks_of_one_byte_is_read(whole: RunningGateway) -> None:
    body = json.dumps(PROMPT | {"user": "x" * 5000}).encode()
    whole.triton.answer = lambda _: [response(text_output="x", finish_reason="stop")]
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    answer = raw(
        whole,
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks + b"0\r\n\r\n",
    )  # fmt: skip
    assert answer.split()[1] == b"200"
