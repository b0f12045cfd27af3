"""The contract at the server's edge: TensorRT-LLM's clients work, wrong requests hear why."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from running_service import Refused, RunningService
from tritonclient.utils import InferenceServerException
from wire_tensors import tensor_of

PROMPT = "def fibonacci(n):"


def as_tensorrt_llm_sends(prompt: str, *, streaming: bool, temperature: float) -> list[Any]:
    """The tensors of `inflight_batcher_llm/client/end_to_end_grpc_client.py`, all its flags set."""
    return [
        tensor_of("text_input", np.array([[prompt]]).astype(object)),
        tensor_of("max_tokens", np.array([[24]], np.int32)),
        tensor_of("stream", np.array([[streaming]], bool)),
        tensor_of("beam_width", np.array([[1]], np.int32)),
        tensor_of("temperature", np.array([[temperature]], np.float32)),
        tensor_of("num_return_sequences", np.array([[1]], np.int32)),
        tensor_of("bad_words", np.array([["zebra"]], object)),
        tensor_of("stop_words", np.array([["zebra", ""]], object)),
        tensor_of("repetition_penalty", np.array([[1.1]], np.float32)),
        tensor_of("presence_penalty", np.array([[0.1]], np.float32)),
        tensor_of("frequency_penalty", np.array([[0.1]], np.float32)),
        tensor_of("return_log_probs", np.array([[True]], bool)),
        tensor_of("end_id", np.array([[0]], np.int32)),
        tensor_of("pad_id", np.array([[0]], np.int32)),
        tensor_of("exclude_input_in_output", np.array([[False]], bool)),
        tensor_of("return_perf_metrics", np.array([[True]], bool)),
    ]


REQUESTED_BY_TENSORRT_LLM = (
    "text_output", "cum_log_probs", "output_log_probs", "sequence_index", "batch_index",
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks",
    "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns",
    "acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens",
)  # fmt: skip


@pytest.mark.parametrize("streaming", [True, False])
def test_the_calls_of_tensorrt_llms_grpc_client_work(
    server: RunningService, streaming: bool
) -> None:
    results: list[Any] = []
    with grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: results.append(error or result))
        client.async_stream_infer(
            "ensemble",
            as_tensorrt_llm_sends(PROMPT, streaming=streaming, temperature=0.0),
            outputs=[grpc.InferRequestedOutput(name) for name in REQUESTED_BY_TENSORRT_LLM],
            request_id="1",
        )
        client.stop_stream()  # returns once the server has closed the stream
    text = ""
    for result in results:
        assert isinstance(result, grpc.InferResult), result
        text += result.as_numpy("text_output")[0].decode("utf-8")
        for name in REQUESTED_BY_TENSORRT_LLM[3:]:
            assert result.as_numpy(name)[0][0] >= 0
        assert result.as_numpy("output_log_probs").ndim == 3
    assert len(results) > 1 if streaming else len(results) == 1
    assert text.startswith(PROMPT) is not streaming


@pytest.mark.parametrize(("least", "tokens"), [({}, 0), ({"min_length": 7}, 7)])
def test_min_length_when_the_end_is_likeliest_holds_it_back_as_genai_perf_means(
    server: RunningService, least: dict[str, int], tokens: int
) -> None:
    ends: dict[str, Any] = {"logit_bias_ids": [0], "logit_bias_values": [100.0], "max_tokens": 24}
    status, reply = server.generate(
        text_input=PROMPT, return_num_output_tokens=True, **(ends | least)
    )
    assert (status, reply["finish_reason"]) == (200, "stop")
    assert reply["num_output_tokens"] == tokens


def test_curl_on_generate_stream_gets_an_event_per_delta_and_on_generate_one_text(
    server: RunningService,
) -> None:
    events = server.generate_stream(text_input=PROMPT, max_tokens=48, stream=True)
    status, whole = server.generate(text_input=PROMPT, max_tokens=48)
    assert (status, whole["finish_reason"]) == (200, "length")
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == whole["text_output"]


def test_grpc_infer_without_a_stream_says_that_the_model_is_decoupled(
    server: RunningService,
) -> None:
    tensors = as_tensorrt_llm_sends(PROMPT, streaming=False, temperature=0.0)
    with (
        grpc.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match="decoupled"),
    ):
        client.infer("ensemble", tensors)


BAD: list[tuple[str, Any, str]] = [
    ("temperature", math.nan, "temperature is nan"),
    ("text_input", b"\xff\xfe", "text_input is b'\\xff\\xfe'"),
    ("text_input", "x " * 5000, "text_input is 5001 tokens long"),
    # Triton's own front end refuses these, by name too.
    ("max_tokens", np.array([[16]], np.int64), "'max_tokens' data-type is 'INT64'"),
    ("temperature", np.array([[1]], np.int32), "'temperature' data-type is 'INT32'"),
    ("max_tokens", np.array([[16, 16]], np.int32), "'max_tokens'"),
    ("max_tokens", np.array([16], np.int32), "'max_tokens'"),
    ("text_input", np.array([[b"x"], [b"y"]], object), "batch size"),
    ("bogus", 1, "'bogus'"),
    # gRPC's front end takes it for a huge one; over HTTP it is a parameter, see below.
    ("timeout_us", -1, "INVALID_ARGUMENT: timeout is -1"),
    ("parameters", {"max_token": 8}, "parameter is 'max_token'"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
async def test_a_bad_value_is_refused_by_name_and_the_server_stays_healthy(
    server: RunningService, name: str, value: Any, message: str
) -> None:
    tensors = {"text_input": PROMPT, "max_tokens": 8} | {name: value}
    with pytest.raises(Refused) as refused:
        await server.ask(**tensors)
    assert message in str(refused.value)
    assert server.is_healthy()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": "x", "max_token": 8}, "parameter is 'max_token'"),
        ({"text_input": "x", "timeout": -1}, "timeout is -1"),
        ({"max_tokens": 8}, "text_input is missing"),
        # Triton's HTTP front end refuses these and does not say which field it was.
        ({"text_input": "x", "max_tokens": "many"}, "Unable to parse"),
        ({"text_input": 5}, "Unable to parse"),
    ],
)
def test_bad_json_is_refused_by_name(
    server: RunningService, body: dict[str, Any], message: str
) -> None:
    status, answer = server.generate(**body)
    assert status >= 400
    assert message in answer["error"]
    assert server.is_healthy()


@pytest.mark.parametrize(
    ("model", "prompt"), [("ensemble", b'"text_input": "x"'), ("card", b'"input_ids": [5]')]
)
@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
@pytest.mark.parametrize("field", [b"id", b"note"])
def test_bytes_when_they_are_no_text_are_refused_at_once(
    server: RunningService, model: str, prompt: bytes, endpoint: str, field: bytes
) -> None:
    """Triton's HTTP front end hands them on as they are, in a request's id too."""
    body = b"{" + prompt + b', "max_tokens": 4, "' + field + b'": "\xff\xfe"}'
    url = f"{server.http}/v2/models/{model}/{endpoint}"
    request = urllib.request.Request(url, body)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            said = answer.read().decode()
    except urllib.error.HTTPError as error:
        said = error.read().decode()
    assert "INVALID_ARGUMENT" in said
    assert "no UTF-8" in said or "parameter is 'note'" in said
    assert "Traceback" not in said
    assert server.is_healthy()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "request has 0 inputs"),
        ({"max_tokens": 8}, "input_ids is missing"),
        ({"input_ids": [3072]}, "input_ids is"),
        ({"input_ids": [1] * 4096, "max_tokens": 257}, "max_tokens is 257"),
    ],
)
async def test_card_called_directly_is_as_strict(
    server: RunningService, tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused) as refused:
        await server.ask(model="card", **tensors)
    assert message in str(refused.value)
    assert server.is_healthy()
