"""The client's tensors: names, dtypes and shapes on the wire, and what is refused before it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput

from card_client import CardError, Delta, GenerateRequest
from card_client.wire import INPUTS, OUTPUTS, encode

# TensorRT-LLM's ensemble and CARD's additions, written out a second time on purpose.
CONTRACT: dict[str, tuple[str, Any]] = {
    "text_input": ("BYTES", "def f("),
    "input_ids": ("INT32", [5, 6]),
    "max_tokens": ("INT32", 64),
    "stream": ("BOOL", True),
    "temperature": ("FP32", 0.5),
    "top_k": ("INT32", 40),
    "top_p": ("FP32", 0.25),
    "min_p": ("FP32", 0.125),
    "repetition_penalty": ("FP32", 1.5),
    "presence_penalty": ("FP32", -0.5),
    "frequency_penalty": ("FP32", 0.125),
    "min_tokens": ("INT32", 3),
    "seed": ("UINT64", 2**64 - 1),
    "stop_words": ("BYTES", ["\nclass", "\ndef"]),
    "bad_words": ("BYTES", ["é"]),
    "end_id": ("INT32", 2),
    "stop_token_ids": ("INT32", [7]),
    "logit_bias_ids": ("INT32", [8, 9]),
    "logit_bias_values": ("FP32", [0.5, -2.0]),
    "pad_id": ("INT32", 0),
    "return_log_probs": ("BOOL", False),
    "top_log_probs": ("INT32", 5),
    "return_prompt_log_probs": ("BOOL", True),
    "exclude_input_in_output": ("BOOL", True),
    "num_return_sequences": ("INT32", 1),
    "beam_width": ("INT32", 1),
    "length_penalty": ("FP32", 1.5),
    "return_num_input_tokens": ("BOOL", True),
    "return_num_output_tokens": ("BOOL", True),
    "return_perf_metrics": ("BOOL", False),
    "cache_salt": ("BYTES", "tenant"),
    "skip_reading_prefix_cache": ("BOOL", True),
    "prediction": ("BYTES", "def f(x):"),
    "return_trace": ("BOOL", True),
    "decoding": ("BYTES", "card"),
    "drafter": ("BYTES", "tree"),
    "forbidden_drafter": ("BYTES", "ngram"),
    "growth": ("BYTES", "graph"),
    "acceptance": ("BYTES", "exact"),
    "draft_key": ("BYTES", "0f" * 16),
    "guided_decoding_guide_type": ("BYTES", "regex"),
    "guided_decoding_guide": ("BYTES", "[a-zé]+"),
}
OUTPUT_CONTRACT = {
    "text_output": "BYTES",
    "accepted_bytes": "INT32",
    "finish_reason": "BYTES",
    "num_input_tokens": "INT32",
    "num_output_tokens": "INT32",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
    "details": "BYTES",
    "acceptance_rate": "FP32",
    "total_accepted_draft_tokens": "INT32",
    "total_draft_tokens": "INT32",
    "target_steps": "INT32",
    "cache_queries": "INT32",
    "cache_hits": "INT32",
    "foreign_tokens": "INT32",
    "arrival_time_ns": "INT64",
    "first_scheduled_time_ns": "INT64",
    "first_token_time_ns": "INT64",
    "last_token_time_ns": "INT64",
    "batch_index": "INT32",
    "sequence_index": "INT32",
    "kv_cache_alloc_new_blocks": "INT32",
    "kv_cache_reused_blocks": "INT32",
    "kv_cache_alloc_total_blocks": "INT32",
}
_LAYOUT = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}


def raw(dtype: str, value: Any) -> bytes:
    """The bytes that Triton's protocol prescribes for a row of values."""
    values = value if isinstance(value, list) else [value]
    if dtype == "BYTES":
        texts = [text.encode() for text in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return b"".join(struct.pack(_LAYOUT[dtype], item) for item in values)


def sent(inputs: list[InferInput]) -> dict[str, tuple[str, list[int], bytes]]:
    return {i.name(): (i.datatype(), list(i.shape()), i._get_content()) for i in inputs}


def test_every_input_travels_with_the_dtype_shape_and_bytes_of_the_contract() -> None:
    request = GenerateRequest(**{name: value for name, (_, value) in CONTRACT.items()})

    expected = {
        name: (dtype, [1, len(value) if isinstance(value, list) else 1], raw(dtype, value))
        for name, (dtype, value) in CONTRACT.items()
    }
    assert sent(encode(request)) == expected
    assert set(INPUTS) == set(CONTRACT)


def test_the_outputs_that_are_read_are_those_of_the_contract() -> None:
    assert {tensor.name: tensor.dtype for tensor in OUTPUTS.values()} == OUTPUT_CONTRACT


def test_only_what_was_set_is_sent() -> None:
    inputs = encode(GenerateRequest("x", 1, temperature=0.0, stop_words=[], stream=False))
    assert set(sent(inputs)) == {"text_input", "max_tokens", "temperature", "stream"}


def test_numpy_scalars_and_whole_numbers_are_welcome_as_numbers() -> None:
    request = GenerateRequest("x", np.int64(7), temperature=1, top_p=np.float32(0.5))  # type: ignore[arg-type]
    tensors = sent(encode(request))
    assert tensors["max_tokens"][2] == struct.pack("<i", 7)
    assert tensors["temperature"][2] == struct.pack("<f", 1.0)
    assert tensors["top_p"][2] == struct.pack("<f", 0.5)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("text_input", None, "missing"),
        ("text_input", b"raw", "must be text"),
        ("text_input", "\ud800", "Unicode"),
        ("max_tokens", 2**31, "must lie in"),
        ("max_tokens", 1.5, "whole number"),
        ("max_tokens", True, "whole number"),
        ("seed", -1, "must lie in"),
        ("seed", 2**64, "must lie in"),
        ("temperature", "hot", "a number"),
        ("temperature", 1e39, "32 bits"),
        ("top_p", 1e-50, "32 bits"),
        ("return_log_probs", 1, "true or false"),
        ("stop_words", "end", "list of texts"),
        ("bad_words", [3], "must be text"),
    ],
)
def test_a_value_that_cannot_travel_is_refused_by_name(field: str, value: Any, said: str) -> None:
    values = {"text_input": "x", "max_tokens": 1, field: value}
    with pytest.raises(CardError) as caught:
        encode(GenerateRequest(**values))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert field in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "accepted_bytes", "accepted", "corrected"),
    [
        ("abcd", 3, "abc", "d"),
        ("aé", 3, "aé", ""),
        ("aé", 2, "a", "é"),
        ("abc", 0, "", "abc"),
        ("abc", None, "", "abc"),
    ],
)
def test_accepted_and_corrected_text_are_told_apart_without_splitting_a_character(
    text: str, accepted_bytes: int | None, accepted: str, corrected: str
) -> None:
    delta = Delta(text=text, accepted_bytes=accepted_bytes)
    assert (delta.accepted_text, delta.corrected_text) == (accepted, corrected)


@pytest.mark.parametrize("name", ["max_tokens", "seed", "temperature", "stream", "stop_words"])
@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_of_any_length_are_refused_in_a_short_line(name: str, digits: int) -> None:
    with pytest.raises(CardError) as caught:
        encode(GenerateRequest("x", **{name: 10**digits}))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert caught.value.message.startswith(f"{name} is ")
    assert len(caught.value.message) < 200
