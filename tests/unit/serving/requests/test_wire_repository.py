"""The model repository says what the tables of `card.serving` say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from card.serving.requests.delta import LOG_PROBABILITIES, NUMBERS, OUTPUTS, TEXT, Delta, Numbers
from card.serving.requests.remote import CANDIDATES, DTYPES, TAKEN
from card.serving.requests.unary import (
    ENSEMBLE_UNARY,
    LLMAPI,
    OUTPUT_IDS,
    SEQUENCE_LENGTH,
    TENSORRT_LLM,
    Front,
    UnaryRequest,
)
from card.serving.requests.wire import GenerateRequest, tensors
from card.serving.triton.attach import ATTACHED_EPOCH, DEADLINE, KEY

REPOSITORY = Path(__file__).parents[4] / "model_repository"

Declared = dict[str, tuple[str, list[int]]]

INTERNAL: Declared = {
    TEXT: ("TYPE_STRING", [2]),
    NUMBERS: ("TYPE_INT64", [-1]),
    LOG_PROBABILITIES: ("TYPE_FP32", [-1]),
}
DATA_TYPES = {"BYTES": "TYPE_STRING", "BOOL": "TYPE_BOOL", "INT32": "TYPE_INT32",
              "INT64": "TYPE_INT64", "UINT64": "TYPE_UINT64", "FP32": "TYPE_FP32"}  # fmt: skip
"""Names in `config.pbtxt` of the dtypes on the wire."""

OUTWARD: Declared = {output.name: (DATA_TYPES[output.dtype], output.dims) for output in OUTPUTS}
OF_DEVICES: Declared = {
    name: (DATA_TYPES[dtype], [-1 if name == CANDIDATES else 1]) for name, dtype in DTYPES.items()
}
TOKENS: Declared = {OUTPUT_IDS: ("TYPE_INT32", [-1, -1]), SEQUENCE_LENGTH: ("TYPE_INT32", [-1])}


def table(kind: type[GenerateRequest]) -> Declared:
    return {tensor.name: (DATA_TYPES[tensor.dtype], tensor.dims) for tensor in tensors(kind)}


def config(model: str) -> ModelConfig:
    text = (REPOSITORY / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, ModelConfig())


def declared(tensors: list[Any]) -> Declared:
    return {t.name: (DataType.Name(t.data_type), list(t.dims)) for t in tensors}


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("ensemble", table(GenerateRequest), OUTWARD),
        ("preprocessing", table(GenerateRequest), {"input_ids": ("TYPE_INT32", [-1])}),
        ("card", table(GenerateRequest), INTERNAL),
        ("postprocessing", INTERNAL, OUTWARD),
        *(
            (
                engine,
                {KEY: ("TYPE_STRING", [1]), DEADLINE: ("TYPE_INT64", [1])},
                {ATTACHED_EPOCH: ("TYPE_INT64", [1])},
            )
            for engine in ("draft", "target")
        ),
        ("remote", OF_DEVICES, {TAKEN: ("TYPE_BOOL", [1])}),
    ],
)
def test_declared_tensors_are_those_of_the_tables(
    model: str, inputs: Declared, outputs: Declared
) -> None:
    declaration = config(model)
    assert declaration.name == model
    assert declared(declaration.input) == inputs
    assert declared(declaration.output) == outputs


@pytest.mark.parametrize(
    ("model", "front"),
    [("ensemble_unary", ENSEMBLE_UNARY), ("tensorrt_llm", TENSORRT_LLM), ("llmapi", LLMAPI)],
)
def test_what_answers_once_has_the_tensors_of_its_table(model: str, front: Front) -> None:
    """Each is one of ours, of the same kind, whatever it is called there."""
    declaration = config(model)
    inputs = table(UnaryRequest)
    assert declared(declaration.input) == {n: inputs[front.ours(n)] for n in front.inputs}
    assert declared(declaration.output) == {
        n: (OUTWARD | TOKENS)[front.ours(n)] for n in front.outputs
    }


def test_the_ensemble_connects_every_tensor_to_its_namesake() -> None:
    """But for the prompt's tokens: a client may send them, and preprocessing always does."""
    made = {"input_ids": "prompt_ids"}
    steps = config("ensemble").ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["preprocessing", "card", "postprocessing"]
    for step in steps:
        model = config(step.model_name)
        inputs, outputs = ({t.name: t.name for t in side} for side in (model.input, model.output))
        is_first = step.model_name == "preprocessing"
        takes_ids = step.model_name == "card"
        assert dict(step.input_map) == (inputs | made if takes_ids else inputs)
        assert dict(step.output_map) == (outputs | made if is_first else outputs)


@pytest.mark.parametrize("broken", [TEXT, NUMBERS, LOG_PROBABILITIES, "no text"])
def test_a_delta_of_strangers_is_refused(broken: str) -> None:
    packed = Delta("x", Numbers(0, 1)).pack()
    if broken == "no text":
        broken, packed[TEXT][0, 0] = TEXT, b"\xff"
    else:
        packed[broken] = packed[broken][:, :0]
    with pytest.raises(ValueError, match=f"not a delta of card: {broken}"):
        Delta.unpack(packed, most_tokens=8)
