"""What comes out: the target's own text, piece by piece, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from running_service import UNLIKE_OTHERS, Refused, RunningService

PROMPTS = (
    "def fibonacci(n):",
    'def is_prime(number: int) -> bool:\n    """Whether a number is prime."""\n',
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(path):\n    for name in",
    "# Grüße, 世界 🌍\nGREETINGS = [",
    "def merge(left, right):\n    result = []\n    while",
    "x",
    "    return sorted(",
)
MAY_END_TRITON = pytest.mark.flaky(reruns=2)
"""Of tests in which clients leave by the hundred: see "Known holes" in SECURITY.md."""


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 7}])
async def test_eight_streams_at_once_write_what_the_target_alone_writes(
    server: RunningService, sampling: dict[str, Any]
) -> None:
    alone = [
        await server.text(prompt, max_tokens=96, decoding="autoregressive", **sampling)
        for prompt in PROMPTS
    ]
    for decoding in ("card", "pearl", "draft_then_verify"):
        together = await asyncio.gather(
            *(server.text(p, max_tokens=96, decoding=decoding, **sampling) for p in PROMPTS)
        )
        assert list(together) == alone, decoding


async def test_a_seed_repeats_a_text_and_another_seed_writes_another(
    server: RunningService,
) -> None:
    first, again, other, unseeded = [
        await server.text(PROMPTS[0], max_tokens=64, temperature=1.0, **seed)
        for seed in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {})
    ]
    assert first == again
    assert len({first, other, unseeded}) == 3


async def test_a_stop_word_ends_the_text_before_it(server: RunningService) -> None:
    whole = await server.text(PROMPTS[0], max_tokens=96)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    for stream in (True, False):
        replies = await server.ask(
            text_input=PROMPTS[0], max_tokens=96, stream=stream, stop_words=["", stop]
        )
        assert "".join(reply.text for reply in replies) == whole[: whole.index(stop)]
        assert replies[-1].finish_reason == "stop"


async def test_the_end_id_ends_the_text_and_is_not_part_of_it(server: RunningService) -> None:
    open_brackets = 9
    replies = await server.ask(
        text_input=PROMPTS[0], max_tokens=256, end_id=open_brackets, return_num_output_tokens=True
    )
    without = await server.ask(text_input=PROMPTS[0], max_tokens=256, end_id=-1)
    text = replies[-1].text
    assert replies[-1].finish_reason == "stop"
    assert without[-1].finish_reason == "length"
    assert without[-1].text.startswith(text)
    assert replies[-1].one("num_output_tokens") < 256


async def test_the_prompt_comes_back_only_where_tensorrt_llm_sends_it(
    server: RunningService,
) -> None:
    prompt = PROMPTS[4]
    request: dict[str, Any] = {"text_input": prompt, "max_tokens": 16}
    (absent,) = await server.ask(**request)
    (excluded,) = await server.ask(exclude_input_in_output=True, **request)
    (included,) = await server.ask(exclude_input_in_output=False, **request)
    streamed = await server.ask(exclude_input_in_output=False, stream=True, **request)
    assert absent.text == excluded.text == "".join(reply.text for reply in streamed)
    assert included.text == prompt + absent.text


async def test_what_is_asked_for_is_reported(server: RunningService) -> None:
    (reply,) = await server.ask(
        text_input=PROMPTS[0], max_tokens=64, **UNLIKE_OTHERS, return_log_probs=True,
        return_num_input_tokens=True, return_num_output_tokens=True, return_perf_metrics=True,
    )  # fmt: skip
    tokens = reply.one("num_output_tokens")
    assert tokens == 64
    assert reply.one("num_input_tokens") == 9
    log_probs = reply.tensors["output_log_probs"]
    assert len(log_probs) == tokens
    assert all(value < 0 for value in log_probs)
    assert reply.one("cum_log_probs") == pytest.approx(sum(log_probs), rel=1e-4)
    accepted, drafted = (reply.one("total_accepted_draft_tokens"), reply.one("total_draft_tokens"))
    assert 0 < accepted <= drafted
    assert reply.one("acceptance_rate") == pytest.approx(accepted / drafted)
    times = [
        reply.one(name)
        for name in ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns",
                     "last_token_time_ns")
    ]  # fmt: skip
    assert times == sorted(times)
    assert times[0] > 0
    assert 0 < reply.one("target_steps") <= tokens
    assert reply.one("cache_hits") <= reply.one("cache_queries")


async def test_timeout_is_honoured_from_grpc_and_from_http(server: RunningService) -> None:
    request: dict[str, Any] = {"text_input": PROMPTS[0], "max_tokens": 1000, "end_id": -1}
    with pytest.raises(Refused, match="DEADLINE_EXCEEDED: timeout is over while decoding"):
        await server.ask(stream=True, timeout_us=100_000, **request)
    status, body = await asyncio.to_thread(server.generate, timeout=100_000, **request)
    assert status >= 400
    assert "DEADLINE_EXCEEDED: timeout is over while decoding" in body["error"]
    assert server.is_healthy()


@MAY_END_TRITON
async def test_clients_that_leave_leave_no_slot_in_use(server: RunningService) -> None:
    async def leave() -> None:
        stream = server.stream(text_input="x", stream=True, max_tokens=1000, end_id=-1)
        async for reply in stream:
            if reply.text:  # not only the sign that its request waits for a slot
                break
        await stream.aclose()

    def cancelled() -> float:
        return server.metric("card_requests_total", outcome="cancelled")

    before = cancelled()
    for _ in range(10):
        await asyncio.gather(*(leave() for _ in range(20)))
    await server.until(lambda: cancelled() - before >= 200, "all 200 are seen to have left")
    assert cancelled() - before == 200
    await server.until(lambda: server.metric("card_slots_in_use") == 0, "all slots are free")
    assert server.metric("card_queued_requests") == 0
    assert await server.text(PROMPTS[0], max_tokens=8)
