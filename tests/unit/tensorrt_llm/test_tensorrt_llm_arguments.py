"""Settings to the runtime's constructor, requests to its sampling parameters."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorrt_double import forget_standin, standin

from card.cache import SlotRequest
from card.engines import EngineError
from card.engines.tensorrt_llm.runtime import Runtime, import_tensorrt_llm
from card.engines.tensorrt_llm.sampling import sampling_arguments
from card.engines.tensorrt_llm.support import installed_version
from card.sampling import SamplingParameters
from card.settings import load_settings
from card.tensorrt_llm.arguments import (
    candidates_per_step,
    check_quantization,
    draft_arguments,
    target_arguments,
)

VERSIONS = ["1.1.0", "1.2.1", "1.3.0rc24"]
TARGET = {"engine": "tensorrt_llm"}


@pytest.fixture(params=VERSIONS)
def package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    with standin(tmp_path, request.param, monkeypatch) as imported:
        yield imported


# --- the constructor ------------------------------------------------------------------------------


def test_every_argument_is_one_that_the_runtime_knows_and_arrives_unchanged(package: Any) -> None:
    """An unknown one is an error there."""
    settings = load_settings(target=TARGET, draft=TARGET)
    for arguments in (
        target_arguments(settings, package.llmapi, object()),
        target_arguments(settings, package.llmapi, None),
        draft_arguments(settings, package.llmapi),
    ):
        made = package.llmapi.TorchLlmArgs(**arguments)
        assert made.model_fields_set == set(arguments)
        assert {name: getattr(made, name) for name in arguments} == arguments


def test_the_settings_reach_the_runtime(package: Any) -> None:
    config = {
        "devices": [2, 3],
        "tensor_parallel": 2,
        "tensor_parallel_candidates": True,
        "kv_fraction": 0.4,
        "kv_dtype": "fp8",
        "kv_block_tokens": 64,
        "chunked_prefill": False,
        "batch_tokens": 512,
        "cuda_graphs": False,
    }
    settings = load_settings(
        target={**TARGET, "tensorrt_llm": config, "dtype": "bfloat16"},
        speculation={"rows": 5},
        cache={"slots": 7},
        limits={"context_tokens": 400},
    )
    drafter = object()
    made = package.llmapi.TorchLlmArgs(**target_arguments(settings, package.llmapi, drafter))
    assert (made.tensor_parallel_size, made.gpus_per_node) == (2, 2)
    assert (made.max_batch_size, made.max_num_tokens, made.max_seq_len) == (7, 512, 400)
    assert (made.enable_chunked_prefill, made.cuda_graph_config) == (False, None)
    assert made.dtype == "bfloat16"
    kv = made.kv_cache_config
    assert (kv.free_gpu_memory_fraction, kv.dtype, kv.tokens_per_block) == (0.4, "fp8", 64)
    assert made.speculative_config.max_draft_len == candidates_per_step(settings) == 4
    assert made.speculative_config.drafter is drafter


def test_a_pass_must_hold_the_rows_of_every_slot(package: Any) -> None:
    settings = load_settings(
        target={**TARGET, "tensorrt_llm": {"batch_tokens": 64}}, cache={"slots": 9}
    )
    with pytest.raises(EngineError, match="is 72 rows per pass; allowed: at most"):
        target_arguments(settings, package.llmapi, object())


def test_the_draft_has_room_for_all_side_branches(package: Any) -> None:
    settings = load_settings(draft={"tensorrt_llm": {"side_branches": 3}}, cache={"slots": 5})
    assert draft_arguments(settings, package.llmapi)["max_batch_size"] == 20


def test_the_package_is_imported_with_its_own_devices_in_sight(package: Any) -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert os.environ["TRTLLM_NO_USAGE_STATS"] == "1", "it would report how it is used"
    assert import_tensorrt_llm([3]) is package
    with pytest.raises(EngineError, match="cannot be moved to '0,1'"):
        import_tensorrt_llm([0, 1])


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_standin()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(EngineError, match=r"tritonserver:26\.07-trtllm-python-py3"):
        import_tensorrt_llm([0])
    with pytest.raises(EngineError, match="or set engine: torch"):
        installed_version()


def test_a_model_that_cannot_be_loaded_is_named_and_leaves_no_thread() -> None:
    def out_of_memory(**_: object) -> None:
        raise RuntimeError("out of memory")

    threads = threading.active_count()
    package: Any = SimpleNamespace(LLM=out_of_memory)
    with pytest.raises(EngineError, match="/models/large cannot be loaded: out of memory"):
        Runtime(package, {"model": "/models/large"})
    assert threading.active_count() == threads


def test_what_a_checkpoint_is_quantized_to_is_checked(tmp_path: Path) -> None:
    check_quantization(tmp_path, "auto")
    check_quantization(tmp_path, "none")
    with pytest.raises(EngineError, match="quantized to none, the settings say quantization: fp8"):
        check_quantization(tmp_path, "fp8")
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8"}})
    )
    check_quantization(tmp_path, "fp8")
    with pytest.raises(EngineError, match="quantized to fp8"):
        check_quantization(tmp_path, "none")


# --- sampling parameters --------------------------------------------------------------------------


def arguments_of(max_tokens: int = 9, **parameters: Any) -> dict[str, Any]:
    log_probabilities = parameters.pop("log_probabilities", False)
    request = SlotRequest(
        np.array([1], np.int64),
        max_tokens,
        "card",
        SamplingParameters(**parameters),
        log_probabilities=log_probabilities,
    )
    return sampling_arguments(request, max_tokens)


OFF = {"pad_id": 0, "ignore_eos": False, "detokenize": False}


def test_greedy_is_greedy_in_every_version() -> None:
    assert arguments_of(end_ids=(4, 9, 2))["stop_token_ids"] == [9, 2]
    assert arguments_of(end_ids=(4,)) == {
        **OFF, "max_tokens": 9, "end_id": 4, "pad_id": 4, "top_k": 1,
    }  # fmt: skip
    assert arguments_of(end_ids=(4,), temperature=0.7, top_k=1)["top_k"] == 1


def test_the_runtime_takes_them_all_and_what_is_off_keeps_its_default(package: Any) -> None:
    wanted = arguments_of(
        temperature=0.7, top_k=5, top_p=0.9, seed=11, repetition_penalty=1.1, min_tokens=2,
        presence_penalty=0.2, frequency_penalty=0.3, bad_words=((7,),), log_probabilities=True,
    )  # fmt: skip
    made, plain = package.SamplingParams(**wanted), package.SamplingParams()
    for field in dataclasses.fields(made):
        expected = wanted.get(field.name, getattr(plain, field.name))
        assert getattr(made, field.name) == expected, field.name


@pytest.mark.parametrize(
    ("parameters", "greedy"),
    [
        ({}, True),
        ({"temperature": 0.7, "top_k": 1}, True),
        ({"temperature": 0.7}, False),
        ({"temperature": 0.7, "top_p": 0.9}, False),
        ({"temperature": 0.7, "top_k": 5}, False),
    ],
)
def test_each_version_takes_for_greedy_what_we_mean_by_it(
    package: Any, parameters: dict[str, Any], greedy: bool
) -> None:
    """Up to 1.1 a temperature without top-k and top-p is greedy, and 0 is none of their values."""
    assert package.SamplingParams(**arguments_of(**parameters)).is_greedy == greedy
