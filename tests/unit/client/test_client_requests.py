"""The client's requests: streaming, whole answers, time limits, cancellation, errors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from client_double import HOLD_S, Request, Responses, TritonDouble, refusal, response
from tritonclient.grpc.aio import InferenceServerClient

from card_client import CardClient, CardError, Delta, GenerateRequest

REQUEST = GenerateRequest("def f(", 8)


async def streamed(triton: TritonDouble, **config: Any) -> list[Delta]:
    async with CardClient(triton.address) as client:
        return [delta async for delta in client.stream(REQUEST, **config)]


async def failure(triton: TritonDouble, **config: Any) -> CardError:
    with pytest.raises(CardError) as caught:
        await streamed(triton, **config)
    return caught.value


async def test_a_request_arrives_with_its_id_and_the_clients_headers(triton: TritonDouble) -> None:
    async with CardClient(triton.address, headers={"Authorization": "token"}) as client:
        async for _ in client.stream(REQUEST, timeout_s=30, request_id="mine"):
            pass
        await client.generate(GenerateRequest("def f(", 8, stream=True))
    streamed, whole = triton.requests
    assert (streamed.model_name, streamed.id) == ("ensemble", "mine")
    assert triton.metadata[0]["authorization"] == "token"
    for request, streams in ((streamed, b"\x01"), (whole, b"\x00")):
        names = [i.name for i in request.inputs]
        assert request.raw_input_contents[names.index("stream")] == streams


async def test_a_time_limit_binds_both_the_client_and_the_server(triton: TritonDouble) -> None:
    await streamed(triton, timeout_s=12.5)

    assert triton.requests[0].parameters["timeout"].int64_param == 12_500_000
    assert set(triton.requests[0].parameters) == {"timeout"}
    await streamed(triton, timeout_s=None)
    assert not triton.requests[1].parameters
    deadline = triton.deadlines_s[0]
    assert deadline is not None
    assert deadline < 20  # gRPC rounds it up a little on its way.


@pytest.fixture
def kept_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keeps every gRPC call alive: a forgotten one would be cancelled by garbage collection."""
    calls: list[Any] = []
    stream_infer = InferenceServerClient.stream_infer

    def keeping(*args: Any, **config: Any) -> Any:
        calls.append(stream_infer(*args, **config))
        return calls[-1]

    monkeypatch.setattr(InferenceServerClient, "stream_infer", keeping)
    return calls


@pytest.mark.usefixtures("kept_calls")
async def test_breaking_out_of_the_loop_cancels_on_the_server(triton: TritonDouble) -> None:
    triton.hold(response(text_output="x", finish_reason=""))
    async with CardClient(triton.address) as client:
        async for _ in client.stream(REQUEST):
            break
        assert await asyncio.to_thread(triton.wait_until_client_left)


@pytest.mark.usefixtures("kept_calls")
@pytest.mark.parametrize("method", ["stream", "generate"])
async def test_cancelling_the_task_cancels_on_the_server(triton: TritonDouble, method: str) -> None:
    triton.hold()
    async with CardClient(triton.address, first_response_s=0.1) as client:

        async def ask() -> None:
            if method == "generate":
                await client.generate(REQUEST)
            else:
                async for _ in client.stream(REQUEST):
                    pass

        task = asyncio.create_task(ask())
        assert await asyncio.to_thread(triton.wait_until_arrived)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(triton.wait_until_client_left)


@pytest.mark.parametrize("begun", [False, True])
async def test_client_when_it_is_closed_ends_its_requests_with_an_error(
    triton: TritonDouble, begun: bool
) -> None:
    triton.hold(*([response(text_output="x", finish_reason="")] if begun else []))
    client = CardClient(triton.address)
    heard = asyncio.Event()

    async def ask() -> None:
        async for _ in client.stream(REQUEST):
            heard.set()

    task = asyncio.create_task(ask())
    await (heard.wait() if begun else asyncio.to_thread(triton.wait_until_arrived))
    await client.close()
    with pytest.raises(CardError, match="CANCELLED: this client was closed meanwhile"):
        await task
    assert not task.cancelled()


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            "in ensemble 'ensemble', Failed to process the request(s) for model 'preprocessing_0', "
            "message: INVALID_ARGUMENT: top_p is 1.5; allowed is [0, 1]",
            "INVALID_ARGUMENT",
            "top_p is 1.5; allowed is [0, 1]",
        ),
        ("UNAVAILABLE: all 8 slots are in use", "UNAVAILABLE", "all 8 slots are in use"),
        ("Request for unknown model: 'nobody' is not found", "NOT_FOUND", "unknown model"),
        ("Request timeout expired", "DEADLINE_EXCEEDED", "expired"),
        ("Exceeds maximum queue size", "UNAVAILABLE", "queue"),
        (
            "[request id: 1] unexpected inference input 'x' for model 'ensemble'",
            "INVALID_ARGUMENT",
            "'x'",
        ),
        ("the stub fell over", "UNKNOWN", "the stub fell over"),
    ],
)
async def test_a_refusal_on_the_stream_carries_code_and_message(
    triton: TritonDouble, said: str, code: str, message: str
) -> None:
    triton.answer = lambda request: [refusal(said)]
    error = await failure(triton)
    assert error.code == code
    assert message in error.message
    assert "Failed to process" not in error.message


async def test_who_leaves_before_the_first_response_is_gone_with_it(triton: TritonDouble) -> None:
    """Triton would keep some of its memory for good."""
    may_answer = threading.Event()

    def answer(_: Request) -> Responses:
        may_answer.wait(HOLD_S)
        yield response(text_output="x", finish_reason="")
        triton.client_left.wait(HOLD_S)

    triton.answer = answer
    async with CardClient(triton.address) as client:
        asking = asyncio.create_task(client.generate(REQUEST))
        await asyncio.to_thread(triton.wait_until_arrived)
        asking.cancel()
        await asyncio.wait({asking})
        await client.is_ready()  # on the same connection, behind whatever was said
        assert asking.cancelled()
        assert not triton.client_left.is_set()
        may_answer.set()
        assert await asyncio.to_thread(triton.wait_until_client_left)


async def test_a_stream_that_failed_is_not_cancelled_before_the_server_ends_it(
    triton: TritonDouble,
) -> None:
    """Triton would keep some of its memory for good."""
    left_before_its_end: list[bool] = []

    def answer(_: Request) -> Responses:
        yield refusal("INVALID_ARGUMENT: no")
        left_before_its_end.append(triton.client_left.wait(0.2))

    triton.answer = answer
    assert (await failure(triton)).code == "INVALID_ARGUMENT"
    assert left_before_its_end == [False]


@pytest.mark.parametrize("answer", [[], [response(text_output="x", finish_reason="")]])
async def test_a_stream_that_just_ends_is_never_taken_for_a_text(
    triton: TritonDouble, answer: list[Any]
) -> None:
    triton.answer = lambda request: answer
    assert (await failure(triton)).code == "INTERNAL"
    if not answer:
        async with CardClient(triton.address) as client:
            with pytest.raises(CardError, match="without an answer"):
                await client.generate(REQUEST)
