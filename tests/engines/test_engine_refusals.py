"""What the engine cannot run is refused by name: which file, what is wrong, what is allowed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from card.engines import EngineError
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

OPTIONS = EngineOptions(context=64, sessions=1, dtype="float32")

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "llama3")
    OpenVinoEngine.load(tmp_path, OPTIONS)
    return tmp_path


def refusal(directory: Path, options: EngineOptions = OPTIONS) -> str:
    with pytest.raises(EngineError) as caught:
        OpenVinoEngine.load(directory, options)
    assert str(directory) in str(caught.value)
    return str(caught.value)


def edit_config(directory: Path, **changes: Any) -> None:
    """Change fields of ``config.json``; None removes one."""
    file = directory / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: v for name, v in config.items() if v is not None}))


def edit_tensors(directory: Path, edit: Callable[[Tensors], object]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("model.layers.1.self_attn.q_norm.weight", False),
        ("model.layers.0.mlp.gate_proj.lora_A.weight", False),
        ("model.norm.bias", False),
        ("lm_head.bias", False),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", True),
        ("lm_head.weight", True),
        ("medusa.0.weight", True),
    ],
)
def test_a_tensor_that_changes_what_is_computed_is_named(
    directory: Path, name: str, is_known: bool
) -> None:
    vocabulary, hidden = load_file(directory / "model.safetensors")[
        "model.embed_tokens.weight"
    ].shape
    edit_tensors(directory, lambda tensors: tensors.update({name: torch.ones(vocabulary, hidden)}))
    if is_known:
        OpenVinoEngine.load(directory, OPTIONS)
    else:
        assert f"{name!r} is not known in models of the family llama" in refusal(directory)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, ["'gpt2'", "llama, mistral, qwen2, qwen3"]),
        ({"model_type": None}, ["model family None", "llama"]),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            ["rope_type 'dynamic'", "default, linear, llama3"],
        ),
        ({"hidden_act": "gelu"}, ["hidden_act 'gelu'", "silu"]),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, ["num_key_value_heads 3"]),
        ({"hidden_size": None}, ["'hidden_size' is missing"]),
        ({"hidden_size": "wide"}, ["hidden_size is 'wide'", "from 1 to"]),
        ({"rope_parameters": {"rope_theta": 0}}, ["rope_theta is 0", "from 1"]),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 1e-300}},
            ["factor is 1e-300", "from 1"],
        ),
        ({"rope_parameters": "x"}, ["rope_parameters 'x'"]),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 1}},
            ["high_freq_factor 1.0 must be greater"],
        ),
        ({"tie_word_embeddings": "false"}, ["tie_word_embeddings is 'false'", "true, false"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps is nan", "from 0 to 1"]),
        (
            {"model_type": "mistral", "sliding_window": float("inf")},
            ["sliding_window is inf", "from 1 to"],
        ),
    ],
)
def test_a_configuration_that_is_not_supported_is_refused_by_name(
    directory: Path, changes: dict[str, Any], named: list[str]
) -> None:
    edit_config(directory, **changes)
    message = refusal(directory)
    assert "config.json" in message
    for name in named:
        assert name in message


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


def cut_off(share: float) -> Callable[[Path], object]:
    def cut(file: Path) -> None:
        whole = file.read_bytes()
        file.write_bytes(whole[: int(share * len(whole))])

    return cut


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        *(("config.json", holding(content)) for content in (
            b'{"a": "llama"', b"\xff\xfe", b"[1, 2]", b"[" * 200_000,
            b'{"a": ' + b"9" * 5000 + b"}",
        )),
        *((INDEX, holding(content)) for content in (
            b"{", b"{}", b"[]", b'{"weight_map": 3}', b'{"weight_map": {}}',
            b'{"weight_map": {"a": 3}}', b'{"weight_map": {"a": "../x.safetensors"}}',
        )),
        *(("model.safetensors", cut_off(share)) for share in (0.0, 0.001, 0.5, 0.999)),
        *((name, pipe) for name in ("model.safetensors", "config.json", INDEX)),
    ],
)  # fmt: skip
def test_a_file_that_is_damaged_is_refused_by_name(
    directory: Path, name: str, spoil: Callable[[Path], object]
) -> None:
    """A named pipe too, instead of being waited for."""
    spoil(directory / name)
    assert name in refusal(directory)


UP, Q_BIAS = "model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"
MISSING = ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "lm_head.weight")


def without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        *((without(name), [f"'{name}' is missing"]) for name in MISSING),
        # On one of several layers that are stacked.
        (lambda it: it.update({Q_BIAS: torch.ones(48)}), ["k_proj.bias' is missing"]),
        (lambda it: it.update({UP: it[UP][:-1].clone()}), [UP, "(79, 48)", "(80, 48)"]),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    directory: Path, edit: Callable[[Tensors], object], named: list[str]
) -> None:
    edit_tensors(directory, edit)
    message = refusal(directory)
    assert all(part in message for part in named)


def test_weights_of_more_layers_than_the_configuration_has_are_refused(directory: Path) -> None:
    """Cut off behind some layers it would load, and write nonsense."""
    layers = json.loads((directory / "config.json").read_text())["num_hidden_layers"]
    edit_config(directory, num_hidden_layers=layers - 1)
    assert f"the weights have a layer {layers - 1}" in refusal(directory)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    model = tiny_models.build(tiny_models.FAMILIES["llama3"])
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    return sorted(tmp_path.glob("*.safetensors"))


def logits(directory: Path) -> NDArray[np.float32]:
    return tiny_models.read_alone(TorchEngine.load(directory, OPTIONS), [1, 2, 3], (3,))


def other_weights(file: Path) -> Tensors:
    """Tensors of the same names, from another training."""
    return {name: values + 1.0 for name, values in load_file(file).items()}


@pytest.mark.parametrize("name", ["model-00001-of-00009.safetensors", "zzz", "model.safetensors"])
def test_what_the_index_does_not_name_is_no_part_of_the_model(
    shards: list[Path], name: str
) -> None:
    first, second, *_ = shards
    expected = logits(first.parent)
    save_file(other_weights(first), first.with_name(name))
    save_file(load_file(second) | other_weights(first), second)  # names of another file's
    np.testing.assert_array_equal(logits(first.parent), expected)


def test_shards_that_contradict_the_index_or_each_other_are_refused(shards: list[Path]) -> None:
    first, second, *_ = shards
    tensors = load_file(first)
    name = next(iter(tensors))
    save_file({other: values for other, values in tensors.items() if other != name}, first)
    assert f"{first} lacks '{name}'" in refusal(first.parent)
    save_file(tensors, first)
    second.rename(second.with_suffix(".away"))
    assert second.name in refusal(first.parent)
    second.with_suffix(".away").rename(second)
    (first.parent / INDEX).unlink()
    first.with_name("copy.safetensors").write_bytes(first.read_bytes())
    message = refusal(first.parent)
    assert "lies in copy.safetensors and in" in message
    assert first.name in message
