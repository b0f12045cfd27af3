"""Crowds, floods and clients that do not read, on the real server."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from running_service import Refused, Reply, RunningService

from card_client import CardClient, CardError, Delta, GenerateRequest
from loading.load import load

QUEUE = 8
FEW_DESCRIPTORS = 2
"""The server opens some when a thread of its pools first works; a leak opens more."""
PROMPTS = ("def fibonacci(n):", "class Stack:\n", "import os\n", "x")
# Seconds long: with CARD this text, which repeats itself, may be over before a metric is read.
LONG: dict[str, Any] = {
    "text_input": "x",
    "max_tokens": 1000,
    "end_id": -1,
    "stream": True,
    "decoding": "autoregressive",
}


async def free(service: RunningService) -> None:
    """Wait until no slot is in use and no request waits for one."""
    await service.until(
        lambda: (
            service.metric("card_slots_in_use") == 0 and service.metric("card_queued_requests") == 0
        ),
        "all slots free",
    )


async def test_a_prompt_at_the_limit_is_served_and_one_token_more_is_refused(
    server: RunningService,
) -> None:
    most = server.settings.limits.prompt_tokens
    ids = [1 + number % 3000 for number in range(most)]
    request: dict[str, Any] = {"model": "card", "max_tokens": 256, "end_id": -1}
    outputs = [
        await server.ask(input_ids=ids, decoding=decoding, **request)
        for decoding in ("autoregressive", "card")
    ]
    texts = [replies[-1].tensors["delta_text"] for replies in outputs]
    assert texts[0] == texts[1]
    assert texts[0] != ["", ""]
    with pytest.raises(Refused, match=f"has {most + 1} elements; it must have at most {most}"):
        await server.ask(input_ids=[*ids, 1], **request)


async def test_streams_when_unread_slow_no_other_and_hold_no_slot(
    server: RunningService,
) -> None:
    """Their responses wait in the server, as many as `max_tokens` allows; the slots come back."""
    alone = [await server.text(prompt, max_tokens=64, end_id=-1) for prompt in PROMPTS]
    request = GenerateRequest("x", 1000, end_id=-1)
    clients = [CardClient(server.grpc) for _ in range(4)]
    streams = [client.stream(request) for client in clients]
    begun = [(await anext(stream)).text for stream in streams]
    beside = await asyncio.gather(
        *(server.text(prompt, max_tokens=64, end_id=-1) for prompt in PROMPTS)
    )
    assert beside == alone
    await free(server)
    whole = [first + await _rest(stream) for first, stream in zip(begun, streams, strict=True)]
    right = await server.text("x", max_tokens=1000, end_id=-1, decoding="autoregressive")
    assert whole == [right] * len(whole)
    for client in clients:
        await client.close()


async def _rest(stream: AsyncIterator[Delta]) -> str:
    return "".join([delta.text async for delta in stream])


async def test_streams_flow_on_while_a_long_prompt_is_read(server: RunningService) -> None:
    """Each pass that reads a chunk of it carries a token of every running stream."""
    limits, serving = server.settings.limits, server.settings.serving
    chunks = limits.prompt_tokens // serving.prefill_chunk
    ids = [1 + number % 3000 for number in range(limits.prompt_tokens)]
    wish = {**LONG, "max_tokens": 600}
    running = server.stream(**wish, return_num_output_tokens=True)
    begun = await anext(running)
    whole = {"input_ids": ids, "max_tokens": 1, "end_id": -1, "skip_reading_prefix_cache": True}
    long = asyncio.create_task(server.ask(model="card", **whole))
    while not long.done():
        reply = await anext(running)
    await long
    assert not reply.finish_reason, "it was to be still running then"
    assert [more async for more in running][-1].finish_reason == "length"
    assert reply.one("num_output_tokens") - begun.one("num_output_tokens") >= chunks


async def test_client_of_http_that_leaves_frees_its_slot_before_its_text_is_done(
    server: RunningService,
) -> None:
    before = server.metric("card_requests_total", outcome="cancelled")
    serving = server.settings.serving
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.http_port)
    body = b'{"text_input": "x", "max_tokens": 1000, "end_id": -1, "stream": true}'
    writer.write(
        b"POST /v2/models/ensemble/generate_stream HTTP/1.1\r\nHost: card\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert await reader.readuntil(b"data: ")
    writer.close()
    await writer.wait_closed()
    await server.until(
        lambda: server.metric("card_requests_total", outcome="cancelled") == before + 1,
        "the session is cancelled",
    )
    await free(server)


async def test_processes_when_crowds_have_left_hold_no_more_descriptors(
    server: RunningService,
) -> None:
    await _crowd(server)  # connections, buffers and threads are made when they are first needed
    before = _descriptors(server)
    for _ in range(3):
        await _crowd(server)
    await server.until(
        lambda: all(
            held <= before[name] + FEW_DESCRIPTORS for name, held in _descriptors(server).items()
        ),
        "descriptors are given back",
    )


async def _crowd(service: RunningService) -> None:
    """Clients that read, leave, give up and ask nonsense, a connection each, until all is free."""

    async def read(client: CardClient) -> None:
        await client.generate(GenerateRequest("x", 32, end_id=-1))

    async def leave(client: CardClient) -> None:
        stream = client.stream(GenerateRequest("x", 1000, end_id=-1))
        await anext(stream)
        await stream.aclose()

    async def give_up(client: CardClient) -> None:
        with contextlib.suppress(CardError):
            await client.generate(GenerateRequest("x", 1000, end_id=-1), timeout_s=0.05)

    async def ask_nonsense(client: CardClient) -> None:
        with pytest.raises(CardError):
            await client.generate(GenerateRequest("x", 4, temperature=-1.0))

    async def behave(how: Callable[[CardClient], Awaitable[None]]) -> None:
        async with CardClient(service.grpc) as client:
            await how(client)

    await asyncio.gather(*(behave(how) for how in (read, leave, give_up, ask_nonsense) * 4))
    await free(service)


def _descriptors(service: RunningService) -> dict[str, int]:
    return {name: psutil.Process(pid).num_fds() for name, pid in service.processes().items()}


@pytest.fixture(scope="module")
def one_slot(start_service: Any) -> Iterator[RunningService]:
    """With a queue in which requests wait for as long as it takes."""
    overrides = {
        "cache": {"slots": 1},
        "limits": {"queued_requests": QUEUE, "queue_timeout_s": 300.0},
        "serving": {"engine_timeout_s": 60.0},
    }
    with start_service(overrides) as service:
        yield service


async def test_a_full_service_refuses_before_a_text_is_tokenized(one_slot: RunningService) -> None:
    """`preprocessing` refuses once `card` has told it; a call of `card` is refused there. Those
    who wait get their turn, and no number before it that none of their tokens has."""
    service = one_slot
    heard: list[list[Reply]] = [[] for _ in range(1 + QUEUE)]

    async def read(into: list[Reply]) -> None:
        async for reply in service.stream(**LONG | {"max_tokens": 64}, return_log_probs=True):
            into.append(reply)

    full = f"UNAVAILABLE: all 1 slots are in use and {QUEUE} requests wait"
    target = psutil.Process(service.pid_of("target"))
    target.suspend()  # no text ends before all are asked for
    streams = [asyncio.create_task(read(into)) for into in heard]
    await service.until(lambda: service.metric("card_queued_requests") == QUEUE, "all wait")
    for _ in range(2):
        with pytest.raises(Refused, match=full):
            await service.ask(text_input="class", max_tokens=4)
    with pytest.raises(Refused, match=full):
        await service.ask(model="card", input_ids=[3], max_tokens=4)
    # The counts of `preprocessing` are exported by `card`, together with its own.
    await service.until(
        lambda: service.metric("card_rejections_total", reason="queue_full") == 3,
        "all refusals are counted",
    )
    refusals = [line for line in service.log.read_text().splitlines() if "queue_full" in line]
    assert ["component=preprocessing" in line for line in refusals] == [True, True, False]
    await service.until(lambda: all(heard), "every client has had a sign of life")
    target.resume()
    await asyncio.gather(*streams)
    for replies in heard:
        assert replies[0].tensors["output_log_probs"] == []
        assert len([p for reply in replies for p in reply.tensors["output_log_probs"]]) == 64
    assert len({"".join(reply.text for reply in replies) for replies in heard}) == 1
    assert await service.text("class", max_tokens=4)


async def test_a_client_that_leaves_the_queue_gives_its_place_up(one_slot: RunningService) -> None:
    """While others before it still wait, and long before anybody's patience ends."""
    service = one_slot
    before = service.metric("card_rejections_total", reason="cancelled")
    target = psutil.Process(service.pid_of("target"))
    target.suspend()  # or the queue would move on meanwhile
    patient = [asyncio.create_task(service.ask(**LONG)) for _ in range(6)]  # in any order
    await service.until(lambda: service.metric("card_queued_requests") == 5, "five wait")
    leaving = [LONG, {"model": "card", "input_ids": [3], "max_tokens": 4, "end_id": -1}]
    waiting = [asyncio.create_task(service.ask(**request)) for request in leaving]
    await service.until(lambda: service.metric("card_queued_requests") == 7, "seven wait")
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await service.until(
        lambda: service.metric("card_rejections_total", reason="cancelled") == before + 2,
        "both places are given up",
    )
    target.resume()
    served = itertools.islice(asyncio.as_completed(patient), 2)
    texts = ["".join(reply.text for reply in await replies) for replies in served]
    assert texts[0]
    assert len(set(texts)) == 1  # what was sent to see whether a client reads is no text
    for task in patient:
        task.cancel()
    await free(service)


async def test_flood_is_answered_or_refused_and_leaves_nothing(one_slot: RunningService) -> None:
    """A refused client gets UNAVAILABLE, every other client its own text."""
    service = one_slot
    alone = {p: await service.text(p, max_tokens=32, end_id=-1) for p in PROMPTS}
    asked = PROMPTS * 8
    answers = await asyncio.gather(
        *(service.text(prompt, max_tokens=32, end_id=-1) for prompt in asked),
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert all("UNAVAILABLE: all 1 slots are in use" in str(error) for error in refused)
    assert 0 < len(refused) <= len(asked) - QUEUE
    answered = [(p, a) for p, a in zip(asked, answers, strict=True) if isinstance(a, str)]
    assert len(answered) + len(refused) == len(asked)
    assert all(text == alone[prompt] for prompt, text in answered)
    await free(service)


def test_scripts_load_measures_and_keeps_the_raw_figures(
    server: RunningService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(server.grpc, [1, 8], seconds=4.0, max_tokens=5, output=tmp_path)
    shown = capsys.readouterr().out
    assert "5 tokens a request" in shown
    for streams in (1, 8):
        with (tmp_path / f"{streams:03}.csv").open(encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
        assert int(row["Concurrency"]) == streams
        assert float(row["Inferences/Second"]) > 0
