"""Settings to the runtime's constructor, requests to its sampling parameters."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorrt_double import forget_standin, standin

from card.cache import SlotRequest
from card.engines import EngineError
from card.engines.tensorrt_llm.requests import installed_version, sampling_arguments
from card.engines.tensorrt_llm.runtime import import_tensorrt_llm
from card.sampling import SamplingParameters
from card.settings import load_settings
from card.tensorrt_llm.loading import draft_arguments, target_arguments

TARGET = {"engine": "tensorrt_llm"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with standin(tmp_path, monkeypatch) as imported:
        yield imported


def test_settings_reach_the_runtime_when_its_arguments_are_made(package: Any) -> None:
    """An argument that the runtime does not know is an error there."""
    config = {
        "devices": [2, 3],
        "tensor_parallel": 2,
        "tensor_parallel_candidates": True,
        "kv_fraction": 0.4,
        "kv_dtype": "fp8",
        "batch_tokens": 512,
    }
    settings = load_settings(
        target={**TARGET, "tensorrt_llm": config, "dtype": "bfloat16"},
        draft={**TARGET, "tensorrt_llm": {"side_branches": 3}},
        speculation={"rows": 5},
        cache={"slots": 7},
        limits={"context_tokens": 400},
    )
    drafter = object()
    made = package.llmapi.TorchLlmArgs(**target_arguments(settings, package.llmapi, drafter))
    assert (made.tensor_parallel_size, made.gpus_per_node, made.dtype) == (2, 2, "bfloat16")
    assert (made.max_batch_size, made.max_num_tokens, made.max_seq_len) == (7, 512, 400)
    assert made.enable_chunked_prefill
    kv = made.kv_cache_config
    assert (kv.free_gpu_memory_fraction, kv.dtype) == (0.4, "fp8")
    assert made.speculative_config.max_draft_len == 4
    assert made.speculative_config.drafter is drafter
    draft = package.llmapi.TorchLlmArgs(**draft_arguments(settings, package.llmapi))
    assert draft.max_batch_size == 28, "a spine and three side branches for each slot"


def test_settings_are_refused_when_a_pass_cannot_hold_the_rows_of_every_slot(package: Any) -> None:
    settings = load_settings(
        target={**TARGET, "tensorrt_llm": {"batch_tokens": 64}}, cache={"slots": 9}
    )
    with pytest.raises(EngineError, match="is 72 rows per pass; allowed: at most"):
        target_arguments(settings, package.llmapi, object())


def test_package_stays_on_its_devices_when_it_was_imported(package: Any) -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert os.environ["TRTLLM_NO_USAGE_STATS"] == "1", "it would report how it is used"
    assert import_tensorrt_llm([3]) is package
    with pytest.raises(EngineError, match="cannot be moved to '0,1'"):
        import_tensorrt_llm([0, 1])


def test_error_says_what_to_do_when_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_standin()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(EngineError, match=r"tritonserver:26\.07-trtllm-python-py3"):
        import_tensorrt_llm([0])
    with pytest.raises(EngineError, match="or set engine: torch"):
        installed_version()


def arguments_of(**parameters: Any) -> dict[str, Any]:
    log_probabilities = parameters.pop("log_probabilities", False)
    request = SlotRequest(
        np.array([1], np.int64),
        9,
        "card",
        SamplingParameters(**parameters),
        log_probabilities=log_probabilities,
    )
    return sampling_arguments(request, 9)


def test_parameters_keep_the_runtimes_default_when_they_are_off(package: Any) -> None:
    wanted = arguments_of(
        temperature=0.7, top_k=5, top_p=0.9, seed=11, min_tokens=2, log_probabilities=True,
        end_ids=(4, 9, 2),
    )  # fmt: skip
    assert (wanted["end_id"], wanted["stop_token_ids"]) == (4, [9, 2])
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
def test_request_is_greedy_when_its_parameters_are(
    package: Any, parameters: dict[str, Any], greedy: bool
) -> None:
    assert package.SamplingParams(**arguments_of(**parameters)).is_greedy == greedy
