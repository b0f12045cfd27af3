"""Files of a pair that cannot be served are refused by name before anything starts."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from real_pair import PAIR, pair_settings

from card.serving.model_files import ModelFilesReading, check_model_files

LIMIT_S = 20.0


def truncated_weights(model: Path) -> str:
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return "is not a sound safetensors file"


def another_vocabulary(model: Path) -> str:
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    (first, number), (second, other) = list(vocabulary.items())[-2:]
    vocabulary[first], vocabulary[second] = other, number
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return "draft and target must share a vocabulary"


def no_end_token(model: Path) -> str:
    (model / "generation_config.json").write_text('{"eos_token_id": "x"}', encoding="utf-8")
    return "no usable eos_token_id"


def no_tokenizer(model: Path) -> str:
    (model / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    return "tokenizer.json"


FAULTS = (
    truncated_weights,
    another_vocabulary,
    no_tokenizer,
)


@pytest.mark.parametrize(
    ("role", "spoil"),
    [*itertools.product(("target", "draft"), FAULTS), ("target", no_end_token)],
    ids=lambda it: getattr(it, "__name__", it),
)
def test_a_model_that_does_not_fit_is_refused_by_its_folder(
    tmp_path: Path, role: str, spoil: Callable[[Path], str]
) -> None:
    model = tmp_path / role
    shutil.copytree(PAIR / role, model)
    reason = spoil(model)
    problem = check_model_files(pair_settings(**{role: {"path": model}}))
    assert problem is not None
    assert reason in problem
    assert str(model) in problem
    assert "\n" not in problem


def test_environment_without_vllm_is_refused_before_anything_starts() -> None:
    vllm = {"engine": "vllm", "vllm": {"python": "/nowhere/python"}}
    problem = check_model_files(pair_settings(target=vllm))
    assert problem == (
        "target.vllm.python: /nowhere/python does not exist; run scripts/setup --vllm"
    )


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_gguf_file_that_tensorrt_llm_is_to_run(tmp_path: Path, role: str) -> None:
    """Named by itself, or by the folder that holds it alone."""
    file = tmp_path / "model/only.gguf"
    file.parent.mkdir()
    file.touch()
    for named in (file, file.parent):
        settings = pair_settings(**{role: {"engine": "tensorrt_llm", "path": named}})
        problem = check_model_files(settings)
        assert problem is not None
        assert problem.startswith(f"{role}.path: {file} is a GGUF file")
        assert f"{role}.engine" in problem


def test_clients_read_the_context_when_the_files_are_sound() -> None:
    settings = pair_settings()
    reading = ModelFilesReading(settings)
    try:
        while not reading.has_ended(LIMIT_S):
            pass
    finally:
        reading.close()
    problem, told = reading.result
    assert problem is None
    assert told["context_tokens"] == str(settings.limits.context_tokens)
