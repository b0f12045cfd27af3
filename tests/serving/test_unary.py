"""One request, one response: what clients get that do not stream."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from running_service import RunningService
from tritonclient.utils import InferenceServerException
from wire_tensors import tensor_of

PROMPT = "def fibonacci(n):"


def tensors(**values: Any) -> list[grpc.InferInput]:
    return [tensor_of(name, value) for name, value in values.items()]


async def test_a_unary_call_has_the_text_of_the_stream(server: RunningService) -> None:
    wanted = await server.text(PROMPT, max_tokens=24)
    with grpc.InferenceServerClient(server.grpc) as client:
        inputs = tensors(
            text_input=PROMPT, max_tokens=24, length_penalty=1.5, return_log_probs=True
        )
        answer = client.infer("ensemble_unary", inputs)
        whole = client.infer("ensemble_unary", [*inputs, *tensors(exclude_input_in_output=False)])
    assert answer.as_numpy("text_output")[0].decode() == wanted
    assert answer.as_numpy("finish_reason").tolist() == [[b"length"]]
    assert answer.as_numpy("output_log_probs").shape == (1, 1, 24)
    assert whole.as_numpy("text_output")[0].decode() == PROMPT + wanted
    status, body = server.generate(model="ensemble_unary", endpoint="infer", inputs=[
        {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [PROMPT]},
        {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [24]},
    ])  # fmt: skip
    assert status == 200
    (text,) = (one["data"] for one in body["outputs"] if one["name"] == "text_output")
    assert text == [wanted]


async def test_tokens_in_tokens_out_under_the_name_of_tensorrt_llm(server: RunningService) -> None:
    streamed = await server.ask(
        text_input=PROMPT, max_tokens=16, stream=True, return_log_probs=True
    )
    details = [json.loads(reply.one("details")) for reply in streamed if reply.one("details")]
    wanted = [token["id"] for told in details for token in told["tokens"]]
    ids = [306, 288, 2880, 266, 555, 1054, 9, 79, 294]
    sent: dict[str, Any] = {
        "input_ids": ids, "input_lengths": len(ids), "request_output_len": 16, "runtime_top_k": 1,
        "beam_width": 1, "temperature": 1.0, "len_penalty": 1.0, "streaming": False,
    }  # fmt: skip
    with grpc.InferenceServerClient(server.grpc) as client:
        answer = client.infer("tensorrt_llm", tensors(**sent))
        stopped = client.infer(
            "tensorrt_llm",
            tensors(
                **sent,
                exclude_input_in_output=True,
                stop_words_list=np.array([[[wanted[5]], [1]]], np.int32),
            ),
        )
        streamed_tokens = client.infer(
            "tensorrt_llm", tensors(**sent | {"streaming": True}), parameters={"Streaming": True}
        )
        with pytest.raises(InferenceServerException, match="input_lengths is 3; it must be 9"):
            client.infer("tensorrt_llm", tensors(**sent | {"input_lengths": 3}))
    assert answer.as_numpy("output_ids").tolist() == [[[*ids, *wanted]]]
    assert answer.as_numpy("sequence_length").tolist() == [[len(ids) + 16]]
    assert stopped.as_numpy("output_ids")[0, 0].tolist() == wanted[:6]
    assert streamed_tokens.as_numpy("output_ids")[0, 0].tolist() == wanted


async def test_a_text_under_the_names_of_the_llm_api(server: RunningService) -> None:
    """As NVIDIA's client sends it, without batches and with a parameter of its own."""
    wanted = await server.text(PROMPT, max_tokens=16)
    prompt = grpc.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([PROMPT], np.object_))
    limit = grpc.InferInput("sampling_param_max_tokens", [1], "INT32")
    with grpc.InferenceServerClient(server.grpc) as client:
        limit.set_data_from_numpy(np.array([16], np.int32))
        answer = client.infer("llmapi", [prompt, limit], parameters={"Streaming": False})
        limit.set_data_from_numpy(np.array([0], np.int32))
        with pytest.raises(InferenceServerException, match="sampling_param_max_tokens is 0"):
            client.infer("llmapi", [prompt, limit])
    assert answer.as_numpy("text_output").tolist() == [(PROMPT + wanted).encode()]
    assert answer.as_numpy("finish_reason").tolist() == [b"length"]
    asked: dict[str, Any] = {"text_input": PROMPT, "sampling_param_max_tokens": 64}
    stop = wanted[4:8]
    own: dict[str, Any] = {
        "sampling_param_exclude_input_from_output": True,
        "sampling_param_stop": [stop],
    }
    status, body = server.generate(model="llmapi", **asked, **own)
    assert status == 200
    assert body["text_output"] == wanted[: wanted.index(stop)]


async def test_a_refusal_names_the_field_and_who_leaves_frees_the_slot(
    server: RunningService,
) -> None:
    with grpc.InferenceServerClient(server.grpc) as client:
        for wrong, why in (
            ({"max_tokens": 8}, "text_input is missing"),
            ({"text_input": PROMPT, "input_ids": [1]}, "send one of them"),
            ({"text_input": PROMPT, "beam_width": 2}, "beam_width is 2; it must be 1"),
        ):
            with pytest.raises(InferenceServerException, match=why):
                client.infer("ensemble_unary", tensors(**wrong))
        before = server.metric("card_requests_total", outcome="cancelled")
        with pytest.raises(InferenceServerException, match="Deadline"):
            client.infer(
                "ensemble_unary",
                tensors(text_input=PROMPT, max_tokens=1024, end_id=-1, decoding="autoregressive"),
                client_timeout=0.3,
            )
    await server.until(
        lambda: server.metric("card_requests_total", outcome="cancelled") > before,
        "the request ended with its client",
    )


async def test_a_deadline_ends_a_text_in_its_middle(server: RunningService) -> None:
    """From gRPC and from HTTP, with the code that `card` gave."""
    asked: dict[str, Any] = {
        "text_input": PROMPT, "max_tokens": 1024, "end_id": -1, "decoding": "autoregressive",
    }  # fmt: skip
    late = "DEADLINE_EXCEEDED: timeout is over while decoding"
    with (
        grpc.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match=late) as refused,
    ):
        client.infer("ensemble_unary", tensors(**asked), timeout=100_000, client_timeout=60)
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    status, body = server.generate(model="ensemble_unary", timeout=100_000, **asked)
    assert status >= 400
    assert late in body["error"]


@pytest.mark.parametrize(
    ("model", "asked", "why"),
    [
        ("llmapi", {"text_input": PROMPT, "max_tokens": 4}, "inputs are text_input, streaming,"),
        ("tensorrt_llm", {"request_output_len": 4}, "input_ids is missing"),
    ],
)
async def test_a_front_refuses_in_the_words_of_its_clients(
    server: RunningService, model: str, asked: dict[str, Any], why: str
) -> None:
    status, body = server.generate(model=model, **asked)
    assert why in body["error"]
    assert status == 400
