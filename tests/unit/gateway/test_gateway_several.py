"""The gateway before a stand-in for Triton: several texts, echoes, usage and speculation."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from client_double import Request, refusal, response
from gateway_double import CHAT, PROMPT, RunningGateway, scored, tell

from card_gateway.generation import Piece, side_by_side


def raw(request: Request, name: str) -> bytes | None:
    found = zip(request.inputs, request.raw_input_contents, strict=True)
    return next((content for tensor, content in found if tensor.name == name), None)


def seed_of(request: Request) -> int:
    content = raw(request, "seed")
    return -1 if content is None else int(struct.unpack("<Q", content)[0])


def told(text: str, tokens: int = 4, **more: Any) -> Any:
    return response(
        text_output=text, num_input_tokens=3, num_output_tokens=tokens, finish_reason="length",
        **more,
    )  # fmt: skip


def prompt_of(request: Request) -> str:
    return (raw(request, "text_input") or b"    ids")[4:].decode()


def prompt_and_seed(request: Request) -> list[Any]:
    return [told(f"{prompt_of(request)}:{seed_of(request)}")]


def test_answers_of_a_prompt_have_seeds_that_follow_each_other(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    gateway.triton.answer = prompt_and_seed
    answer = client.completions.create(model="ensemble", prompt=["a", "b"], n=2, seed=2**64 - 1)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, f"a:{2**64 - 1}"), (1, "a:0"), (2, f"b:{2**64 - 1}"), (3, "b:0"),
    ]  # fmt: skip
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 16)
    chat = client.chat.completions.create(**CHAT, n=3, seed=5)
    assert [choice.message.content.rpartition(":")[2] for choice in chat.choices] == ["5", "6", "7"]


async def test_texts_of_a_prompt_begin_when_it_has_been_read() -> None:
    begun: list[int] = []

    async def text(index: int, turns: int = 0) -> AsyncGenerator[Piece, None]:
        begun.append(index)
        yield Piece(index=index)  # a sign of life
        for _ in range(turns):
            await asyncio.sleep(0)
        if index == 0:
            assert 1 not in begun
            assert 2 not in begun
        yield Piece("a", index)

    texts = [text(0, turns=50), *map(text, range(1, 6))]
    pieces = [piece async for piece in side_by_side(texts, at_once=6, per_prompt=3)]
    assert sorted(piece.index for piece in pieces if piece.text) == [0, 1, 2, 3, 4, 5]
    assert begun[:2] == [0, 3]


def test_best_of_when_texts_differ_takes_those_with_the_likeliest_tokens(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    def answer(request: Request) -> list[Any]:
        likelihood = {5: -3.0, 6: -1.0, 7: -2.0}[seed_of(request)]
        piece = told(f"{seed_of(request)}", 1)
        tell(piece, tokens=[scored(1, likelihood)])
        return [piece]

    gateway.triton.answer = answer
    best = client.completions.create(**PROMPT, n=2, best_of=3, seed=5)
    assert [(choice.index, choice.text) for choice in best.choices] == [(0, "6"), (1, "7")]
    assert best.choices[0].logprobs is None
    for wrong in ({"n": 2, "best_of": 1}, {"best_of": 2, "stream": True}):
        status, _, text = gateway.ask("/v1/completions", PROMPT | wrong)
        assert (status, json.loads(text)["error"]["param"]) == (400, "best_of")


def test_an_error_of_one_answer_is_the_error_of_all(gateway: RunningGateway) -> None:
    gateway.triton.answer = lambda request: [
        refusal("UNAVAILABLE: full") if seed_of(request) == 6 else told("x")
    ]
    assert gateway.ask("/v1/completions", PROMPT | {"n": 4, "seed": 5})[0] == 503


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echo_is_the_prompt_with_its_log_probabilities(
    gateway: RunningGateway, client: openai.OpenAI, max_tokens: int, stream: bool
) -> None:
    piece = told("!", 1)
    tell(
        piece,
        prompt=[scored(3, None), scored(4, -0.5, (4, -0.5))],
        tokens=[scored(5, -1.0, (6, -0.25))],
    )
    gateway.triton.answer = lambda _: [piece]
    answer: Any = client.completions.create(
        **PROMPT, echo=True, logprobs=1, max_tokens=max_tokens, stream=stream
    )
    (choice,) = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert gateway.sent()["return_prompt_log_probs"] == b"\x01"
    assert choice.text == "def f(" + "!" * max_tokens
    assert choice.logprobs.token_logprobs == [None, -0.5, -1.0][: 2 + max_tokens]
    assert choice.logprobs.top_logprobs[0] is None
    assert max(choice.logprobs.top_logprobs[1].values()) == -0.5
    if not stream:
        assert answer.usage.completion_tokens == max_tokens


def test_the_usage_tells_what_speculation_did(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    counts = {"target_steps": 2, "total_draft_tokens": 5, "total_accepted_draft_tokens": 3}
    gateway.triton.answer = lambda _: [told("x", 5, **counts, foreign_tokens=0)]
    usage = client.completions.create(**PROMPT, n=2).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.accepted_prediction_tokens == 6
    assert usage.completion_tokens_details.rejected_prediction_tokens == 4
    assert usage.model_extra is not None
    assert usage.model_extra["speculation"] == {
        "drafted": 10, "accepted": 6, "steps": 4, "tokens_per_step": 2.5, "foreign": 0,
    }  # fmt: skip
    gateway.triton.answer = lambda _: [told("x", 5, **counts, foreign_tokens=1)]
    usage = client.completions.create(**PROMPT, n=2, extra_body={"acceptance": "loose"}).usage
    assert usage is not None
    assert usage.model_extra is not None
    assert usage.model_extra["speculation"]["foreign"] == 2
    assert gateway.sent()["acceptance"].endswith(b"loose")


@pytest.mark.parametrize(
    ("asked", "skips"),
    [
        ({"skip_reading_prefix_cache": True}, True),
        ({"cache_prompt": False}, True),
        ({"cache_prompt": True, "skip_reading_prefix_cache": False}, False),
    ],
)
def test_a_request_may_do_without_kept_text_and_share_with_few(
    gateway: RunningGateway, client: openai.OpenAI, asked: dict[str, bool], skips: bool
) -> None:
    client.completions.create(**PROMPT, extra_body=asked | {"cache_salt": "tenant"})
    sent = gateway.sent()
    assert sent.get("skip_reading_prefix_cache", b"\0") == bytes([skips])
    assert b"tenant" in sent["cache_salt"]
