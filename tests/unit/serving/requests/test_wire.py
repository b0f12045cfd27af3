"""What a request may say, and what it is told when it says something else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from card.constraints import Guide
from card.serving.requests.refusal import Refusal
from card.serving.requests.slot_request import guide_of, output_budget
from card.serving.requests.wire import Bounds, GenerateRequest, parse
from card.settings import LimitSettings

BOUNDS = Bounds(LimitSettings(), vocabulary=8192)

NUMPY = {"temperature": np.float32, "top_p": np.float32, "repetition_penalty": np.float32,
         "presence_penalty": np.float32, "frequency_penalty": np.float32, "stream": np.bool_,
         "min_p": np.float32, "logit_bias_values": np.float32, "length_penalty": np.float32,
         "seed": np.uint64}  # fmt: skip
TEXTS = ("text_input", "stop_words", "bad_words", "decoding", "drafter", "growth", "acceptance",
         "forbidden_drafter", "guided_decoding_guide_type",
         "guided_decoding_guide")  # fmt: skip


def arrays(**values: Any) -> dict[str, NDArray[Any]]:
    """Tensors as Triton hands them to a model: [1, n], text as bytes."""
    tensors = {}
    for name, value in values.items():
        row = value if isinstance(value, list) else [value]
        if name in TEXTS:
            row = [item.encode() if isinstance(item, str) else item for item in row]
        dtype = np.object_ if name in TEXTS else NUMPY.get(name, np.int32)
        tensors[name] = np.array([row], dtype)
    return tensors


def test_absent_tensors_have_the_documented_defaults() -> None:
    request = parse(GenerateRequest, arrays(text_input="x"), BOUNDS)
    assert (request.stream, request.temperature, request.exclude_input_in_output) == (
        False,
        0.0,
        True,
    )
    assert (request.max_tokens, request.seed, request.decoding) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("text_input", "", "at least one character"),
        ("text_input", b"\xff", "valid UTF-8"),
        ("max_tokens", 0, "between 1 and 4096"),
        ("max_tokens", 4097, "between 1 and 4096 (limits.max_tokens)"),
        ("temperature", -0.5, "0 or more"),
        ("temperature", math.nan, "0 or more"),
        ("top_k", -1, "0 or more"),
        ("top_p", 1.5, "between 0 and 1"),
        ("repetition_penalty", 0.0, "between 0.01 and 100.0"),
        ("min_tokens", -1, "between 0 and 4096"),
        ("stop_words", ["x"] * 17, "has 17 elements; it must have at most 16"),
        ("stop_words", ["x" * 257], "at most 256 bytes"),
        ("bad_words", ["x"] * 33, "has 33 elements; it must have at most 32"),
        ("end_id", 8192, "0 to 8191"),
        ("num_return_sequences", 2, "1; for several texts send a request each, with its own seed"),
        ("logit_bias_ids", [-1], "0 to 8191"),
        ("logit_bias_values", [math.nan], "between -100.0 and 100.0"),
        ("top_log_probs", 21, "between 0 and 20"),
        ("decoding", "beam", "auto, card, pearl, draft_then_verify, branch, ssd, autoregressive"),
        ("growth", "wild", "best_first, layered, sampled, fan_out, branch, graph"),
        ("guided_decoding_guide_type", "yaml", "json, json_schema, regex, ebnf_grammar, choice"),
        ("guided_decoding_guide", "x" * 65537, "at most 65536 bytes"),
        ("top_k", [1, 2], "one value"),
    ],
)
def test_a_bad_value_is_refused_by_field_value_and_what_is_allowed(
    name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(Refusal) as refused:
        parse(GenerateRequest, arrays(**{name: value}), BOUNDS)
    message = str(refused.value)
    assert message.startswith(f"INVALID_ARGUMENT: {name} ")
    assert allowed in message
    assert " is (" not in message, "a list, in words that are not Python's alone"


class Unread:
    """Elements that must not become objects."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("input_ids", "at most 4096"), ("stop_words", "at most 16"), ("bad_words", "at most 32"),
     ("text_input", "one value"), ("temperature", "one value")],
)  # fmt: skip
def test_too_many_elements_are_refused_before_any_is_looked_at(name: str, allowed: str) -> None:
    with pytest.raises(Refusal, match=f"{name} has .*; it must .*{allowed}"):
        parse(GenerateRequest, {name: Unread(1, 5_000_000)}, BOUNDS)  # type: ignore[dict-item]


def test_a_tensor_that_is_none_of_the_wires_is_refused_by_name() -> None:
    with pytest.raises(Refusal, match=r"input is 'max_token'; it must be one of .*, max_tokens, "):
        parse(GenerateRequest, arrays(text_input="x", max_token=3), BOUNDS)


def test_the_output_budget_is_what_was_asked_for_if_there_is_room() -> None:
    limits = LimitSettings(prompt_tokens=96, context_tokens=128, default_max_tokens=64)
    assert output_budget(GenerateRequest(max_tokens=32), 96, limits) == 32
    assert output_budget(GenerateRequest(), 32, limits) == 64
    assert output_budget(GenerateRequest(), 90, limits) == 38


def test_a_guide_is_of_its_kind() -> None:
    def guided(kind: str = "", guide: str = "") -> GenerateRequest:
        return GenerateRequest(guided_decoding_guide_type=kind, guided_decoding_guide=guide)

    assert guide_of(guided()) is None
    assert guide_of(guided("json")) == Guide("json")
    assert guide_of(guided("regex", "[0-9]+")) == Guide("regex", "[0-9]+")
    for kind, guide in (("", "{}"), ("json", "{}"), ("json_schema", "")):
        with pytest.raises(Refusal, match="INVALID_ARGUMENT: guided_decoding_guide"):
            guide_of(guided(kind, guide))
