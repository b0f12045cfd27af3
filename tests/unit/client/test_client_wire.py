"""The client's tensors: names, dtypes and shapes on the wire, and what is refused before it."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferInput
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from card.settings import REPOSITORY_ROOT
from card.speculation.acceptance import RULES
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card_client import CardError, Delta, GenerateRequest
from card_client.wire import INPUTS, OUTPUTS, encode

ENSEMBLE = text_format.Parse(
    (REPOSITORY_ROOT / "model_repository/ensemble/config.pbtxt").read_text("utf-8"), ModelConfig()
)
VALUES: dict[str, list[Any]] = {
    "BYTES": ["\nclass", "é"],
    "INT32": [-(2**31), 5],
    "UINT64": [2**64 - 1, 0],
    "FP32": [-0.5, 0.125],
    "BOOL": [True, False],
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


ALIASES = {"min_length"}
"""Second names of inputs, for other clients."""


def test_the_tables_are_those_of_the_model() -> None:
    for table, tensors in ((INPUTS, ENSEMBLE.input), (OUTPUTS, ENSEMBLE.output)):
        dtypes = {
            t.name: DataType.Name(t.data_type).removeprefix("TYPE_")
            for t in tensors
            if t.name not in ALIASES
        }
        assert {t.name: t.dtype.replace("BYTES", "STRING") for t in table.values()} == dtypes
    many = {t.name for t in ENSEMBLE.input if list(t.dims) == [-1]}
    assert {t.name for t in INPUTS.values() if t.many} == many


@pytest.mark.parametrize(
    ("field", "registry"), [("decoding", PACINGS), ("growth", GROWTHS), ("acceptance", RULES)]
)
def test_help_of_an_input_names_each_way_to_speculate(field: str, registry: dict[str, Any]) -> None:
    assert set(registry) <= set(re.findall(r"\w+", INPUTS[field].help))


@pytest.mark.parametrize("place", [0, 1])
def test_every_input_travels_as_the_protocol_prescribes(place: int) -> None:
    values: dict[str, Any] = {
        name: VALUES[t.dtype] if t.many else VALUES[t.dtype][place] for name, t in INPUTS.items()
    }
    expected = {
        name: (t.dtype, [1, 2 if t.many else 1], raw(t.dtype, values[name]))
        for name, t in INPUTS.items()
    }
    assert sent(encode(GenerateRequest(**values))) == expected


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
        *(
            (name, 10**5000, f"{name} is ")
            for name in ("max_tokens", "seed", "temperature", "stream", "stop_words")
        ),
    ],
    ids=lambda it: it if isinstance(it, str) else type(it).__name__,
)
def test_a_value_that_cannot_travel_is_refused_by_name(field: str, value: Any, said: str) -> None:
    values = {"text_input": "x", "max_tokens": 1, field: value}
    with pytest.raises(CardError) as caught:
        encode(GenerateRequest(**values))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert field in caught.value.message
    assert said in caught.value.message
    assert len(caught.value.message) < 200, "a long value is cut"


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
