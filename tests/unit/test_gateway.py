"""The gateway in front of a stand-in for Triton: what it asks for, answers, refuses, cancels."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from client_double import refusal, response
from gateway_double import RunningGateway, running_gateway

from card.settings import REPOSITORY_ROOT
from card_client import CardClient
from card_gateway import Gateway, create_app

TARGET = REPOSITORY_ROOT / "models/target"
PROMPT = {"model": "ensemble", "prompt": "def f("}
CHAT = {"model": "ensemble", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(tokenizer=TARGET, body_bytes=10_000) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> openai.OpenAI:
    gateway.triton.answer = lambda _: two_pieces()
    return openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=20)


def two_pieces() -> list[Any]:
    return [
        response(text_output="héllo", num_input_tokens=3, num_output_tokens=2, finish_reason=""),
        response(
            text_output=" wörld", num_input_tokens=3, num_output_tokens=4, finish_reason="length"
        ),
    ]


def events(text: str) -> list[Any]:
    """The JSON of every event, and what stands in place of one at the end."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [*map(json.loads, lines[:-1]), lines[-1]]


def number(gateway: RunningGateway, name: str, form: str) -> Any:
    return struct.unpack(form, gateway.sent()[name])[0]


# --- answers -----------------------------------------------------------------------------------


def test_a_completion_is_the_whole_text_with_its_usage(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="ensemble", prompt="x")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "héllo wörld"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    assert answer.usage.total_tokens == 7


def test_a_chat_is_answered_by_the_assistant(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "héllo wörld"


def test_a_stream_ends_with_usage_and_done(gateway: RunningGateway, client: openai.OpenAI) -> None:
    status, headers, text = gateway.ask(
        "/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    )
    *chunks, usage, done = events(text)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:]] == ["héllo", " wörld"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1


def test_a_stream_without_options_carries_no_usage(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(**PROMPT, stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == ["héllo", " wörld"]
    assert all(chunk.usage is None for chunk in chunks)


def test_models_can_be_listed_and_retrieved(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["ensemble"]
    assert client.models.retrieve("ensemble").object == "model"
    with pytest.raises(openai.NotFoundError, match="'other' does not exist"):
        client.models.retrieve("other")


# --- what is asked of Triton -------------------------------------------------------------------


def test_every_field_reaches_triton(gateway: RunningGateway, client: openai.OpenAI) -> None:
    client.completions.create(
        **PROMPT,
        max_tokens=7,
        temperature=0.5,
        top_p=0.25,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        seed=2**63,
        stop="end",
        user="someone",
        extra_body={"top_k": 5, "min_tokens": 3, "repetition_penalty": 1.5, "ignore_eos": True,
                    "decoding": "autoregressive"},
    )  # fmt: skip
    sent = gateway.sent()
    assert sent["text_input"].endswith(b"def f(")
    assert sent["stop_words"].endswith(b"end")
    assert sent["decoding"].endswith(b"autoregressive")
    assert number(gateway, "seed", "<Q") == 2**63
    for name, value in (("max_tokens", 7), ("top_k", 5), ("min_tokens", 3), ("end_id", -1)):
        assert number(gateway, name, "<i") == value
    for name, value in (
        ("temperature", 0.5),
        ("top_p", 0.25),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("repetition_penalty", 1.5),
    ):
        assert number(gateway, name, "<f") == value


def test_defaults_are_openais(gateway: RunningGateway, client: openai.OpenAI) -> None:
    client.completions.create(**PROMPT)
    assert number(gateway, "temperature", "<f") == 1.0
    assert number(gateway, "max_tokens", "<i") == 16
    client.chat.completions.create(**CHAT)
    assert "max_tokens" not in gateway.sent()
    client.chat.completions.create(**CHAT, max_completion_tokens=9)
    assert number(gateway, "max_tokens", "<i") == 9


def test_the_extensions_of_genai_perf_are_understood(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    body = {"model": "ensemble", "prompt": ["a b c"], "stream": True, "max_tokens": 8}
    status, _, text = gateway.ask(
        "/v1/completions",
        body | {"nvext": {"ignore_eos": True, "top_k": 4, "greed_sampling": True}},
    )
    assert (status, events(text)[-1]) == (200, "[DONE]")
    assert number(gateway, "end_id", "<i") == -1
    assert number(gateway, "top_k", "<i") == 4
    assert number(gateway, "temperature", "<f") == 0.0
    status, _, text = gateway.ask("/v1/completions", body | {"nvext": {"token_data": [1]}})
    assert status == 400
    assert json.loads(text)["error"]["param"] == "nvext.token_data"


# --- log-probabilities -------------------------------------------------------------------------


def test_log_probabilities_belong_to_pieces_of_the_text(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    first, second = two_pieces()
    for piece, values in ((first, [-0.5, -1.0]), (second, [-0.25, -2.0])):
        piece.infer_response.outputs.add(name="output_log_probs", datatype="FP32", shape=[1, 1, 2])
        piece.infer_response.raw_output_contents.append(struct.pack("<2f", *values))
    gateway.triton.answer = lambda _: [first, second]
    completion = client.completions.create(**PROMPT, logprobs=1, temperature=0)
    scores = completion.choices[0].logprobs
    assert scores is not None
    assert scores.token_logprobs == [-0.5, -1.0, -0.25, -2.0]
    assert "".join(scores.tokens or []) == "héllo wörld"
    assert scores.text_offset is not None
    assert scores.text_offset[0] == 0
    assert scores.top_logprobs == [
        {token: value} for token, value in zip(scores.tokens, scores.token_logprobs, strict=True)
    ]
    chat = client.chat.completions.create(**CHAT, logprobs=True).choices[0].logprobs
    assert chat is not None
    assert [token.logprob for token in chat.content or []] == [-0.5, -1.0, -0.25, -2.0]
    assert b"".join(bytes(token.bytes or []) for token in chat.content or []).decode() == (
        "héllo wörld"
    )
    streamed = list(client.chat.completions.create(**CHAT, logprobs=True, stream=True))
    values = [
        [token.logprob for token in chunk.choices[0].logprobs.content or []]
        for chunk in streamed
        if chunk.choices[0].logprobs
    ]
    assert values == [[-0.5, -1.0], [-0.25, -2.0]]


# --- refusals ----------------------------------------------------------------------------------

NOT_OFFERED: list[tuple[str, Any]] = [
    ("n", 2),
    ("n", True),
    ("best_of", 3),
    ("echo", True),
    ("suffix", "x"),
    ("logit_bias", {"1": 5}),
    ("tools", [{"type": "function"}]),
    ("response_format", {"type": "json_object"}),
    ("logprobs", 2),
    ("prompt", ["a", "b"]),
    ("prompt", [1, 2]),
    ("prompt", [[1, 2]]),
    ("prompt", []),
    ("prompt", [""]),
    ("prompt", ""),
    ("prompt", None),
    ("prompt", {"text": "a"}),
    ("stop", 5),
    ("stop", ["a", 1]),
    ("max_completion_tokens", 5),
    ("logprobs", True),
    ("stream", "true"),
    ("temperature", 2.5),
    ("temperature", "hot"),
    ("top_p", 0),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("seed", 1 << 64),
    ("seed", -(1 << 63) - 1),
    ("seed", "7"),
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


def test_a_prompt_of_token_ids_is_told_to_come_as_text(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    for ids in ([1, 2], [[1, 2]]):
        with pytest.raises(openai.BadRequestError, match="token ids; send it as text") as caught:
            client.completions.create(model="ensemble", prompt=ids)
        assert caught.value.param == "prompt"


def test_a_negative_seed_is_one_of_its_own(gateway: RunningGateway, client: openai.OpenAI) -> None:
    client.completions.create(**PROMPT, seed=-3)
    assert number(gateway, "seed", "<Q") == 2**64 - 3


def test_four_stop_texts_reach_triton(gateway: RunningGateway, client: openai.OpenAI) -> None:
    client.completions.create(**PROMPT, stop=["a", "b", "c", "d"])
    sent = gateway.sent()["stop_words"]
    words = []
    while sent:
        (length,) = struct.unpack("<I", sent[:4])
        words.append(sent[4 : 4 + length])
        sent = sent[4 + length :]
    assert words == [b"a", b"b", b"c", b"d"]


def test_what_asks_for_nothing_is_taken(gateway: RunningGateway, client: openai.OpenAI) -> None:
    neutral = {"n": 1, "best_of": 1, "echo": False, "logit_bias": {}, "tools": None, "suffix": None}
    assert gateway.ask("/v1/completions", PROMPT | neutral)[0] == 200


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.0.content.0.type"),
    ],
)
def test_messages_that_cannot_be_read_are_refused(
    gateway: RunningGateway, client: openai.OpenAI, message: dict[str, Any], param: str
) -> None:
    status, _, text = gateway.ask("/v1/chat/completions", CHAT | {"messages": [message]})
    assert status == 400
    assert json.loads(text)["error"]["param"] == param
    assert json.loads(text)["error"]["message"].startswith(f"{param} is ")


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


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(gateway: RunningGateway, announced: bool) -> None:
    body = json.dumps(PROMPT | {"user": "x" * 10_000}).encode()
    connection = gateway.connect()
    connection.request(
        "POST",
        "/v1/completions",
        body if announced else iter([body[:500], body[500:]]),
        {"Content-Type": "application/json"},
        encode_chunked=not announced,
    )
    answer = connection.getresponse()
    assert answer.status == 413
    assert "at most 10000 bytes" in json.loads(answer.read())["error"]["message"]
    connection.close()


def test_an_unknown_model_and_an_unknown_route_are_404(gateway: RunningGateway) -> None:
    status, _, text = gateway.ask("/v1/completions", PROMPT | {"model": "gpt-4"})
    assert status == 404
    assert json.loads(text)["error"]["code"] == "model_not_found"
    status, _, text = gateway.ask("/v1/embeddings", {})
    assert status == 404
    assert "/v1/embeddings" in json.loads(text)["error"]["message"]
    assert gateway.ask("/v1/completions")[0] == 405


# --- errors of Triton --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "param"),
    [
        ("INVALID_ARGUMENT: min_tokens is 99; it must be less", 400, "min_tokens"),
        ("INVALID_ARGUMENT: stop_words is ('',); it must be fewer", 400, "stop"),
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


def test_requests_take_turns_on_the_pods_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def remember(url: str, **how: Any) -> CardClient:
        asked.update(how, url=url)
        return CardClient(url, **how)

    monkeypatch.setattr("card_gateway.app.CardClient", remember)
    create_app(Gateway(triton="card-pods:8001"))
    assert asked == {"url": "card-pods:8001", "model": "ensemble", "tls": None, "balanced": True}


def test_health_follows_triton(gateway: RunningGateway) -> None:
    assert gateway.ask("/health")[0] == 200
    gateway.triton.models_ready["ensemble"] = False
    try:
        assert gateway.ask("/health")[0] == 503
    finally:
        gateway.triton.models_ready["ensemble"] = True


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


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first_piece", [True, False])
def test_a_request_whose_client_leaves_is_cancelled_on_triton(
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


def test_without_a_tokenizer_log_probabilities_are_refused() -> None:
    with running_gateway() as gateway:
        status, _, text = gateway.ask("/v1/completions", PROMPT | {"logprobs": 0})
        assert status == 400
        assert json.loads(text)["error"]["param"] == "logprobs"
