"""The gateway in front of a stand-in for Triton: what it asks for and what it answers."""

from __future__ import annotations

import json

import openai
import pytest
from gateway_double import CHAT, PROMPT, RunningGateway, events, number, scored, tell, two_pieces


def test_a_stream_ends_with_usage_and_done(gateway: RunningGateway, client: openai.OpenAI) -> None:
    status, headers, text = gateway.ask(
        "/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    )
    *chunks, usage, done = events(text)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    told = [chunk["choices"][0] for chunk in chunks[1:]]
    assert [choice["delta"] for choice in told] == [{"content": "héllo"}, {"content": " wörld"}, {}]
    assert [choice["finish_reason"] for choice in told] == [None, None, "length"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1


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
    for name, share in (
        ("temperature", 0.5),
        ("top_p", 0.25),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("repetition_penalty", 1.5),
    ):
        assert number(gateway, name, "<f") == share


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
    tell(first, tokens=[scored(7, -0.5, (7, -0.5)), scored(8, -1.0, (9, -0.75))])
    tell(second, tokens=[scored(7, -0.25, (7, -0.25)), scored(8, -2.0, (9, -0.5))])
    gateway.triton.answer = lambda _: [first, second]
    completion = client.completions.create(**PROMPT, logprobs=1, temperature=0)
    scores = completion.choices[0].logprobs
    assert scores is not None
    assert scores.token_logprobs == [-0.5, -1.0, -0.25, -2.0]
    assert "".join(scores.tokens or []) == "héllo wörld"
    assert scores.text_offset is not None
    assert scores.text_offset[0] == 0
    assert scores.top_logprobs is not None
    # The chosen token is always told, and the likeliest where it is another.
    assert [max(told.values()) for told in scores.top_logprobs] == [-0.5, -0.75, -0.25, -0.5]
    for token, value, told in zip(
        scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True
    ):
        assert value in told.values(), token
    chat = client.chat.completions.create(**CHAT, logprobs=True).choices[0].logprobs
    assert chat is not None
    assert [token.logprob for token in chat.content or []] == [-0.5, -1.0, -0.25, -2.0]
    assert b"".join(bytes(token.bytes or []) for token in chat.content or []).decode() == (
        "héllo wörld"
    )
    streamed = list(client.chat.completions.create(**CHAT, logprobs=True, stream=True))
    by_chunk = [
        [token.logprob for token in chunk.choices[0].logprobs.content or []]
        for chunk in streamed
        if chunk.choices[0].logprobs
    ]
    assert by_chunk == [[-0.5, -1.0], [-0.25, -2.0]]
