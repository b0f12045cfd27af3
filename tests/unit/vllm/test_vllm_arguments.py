"""What vLLM is started with, and what it is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from card.cache import SlotRequest
from card.engines import EngineError
from card.engines.vllm.arguments import engine_arguments, sampling_arguments
from card.sampling import SamplingParameters
from card.settings import Settings
from card.settings.models import TargetSettings
from card.vllm.process import environment_of, vllm_python

KNOWN = ("tensor_parallel_size", "quantization", "enforce_eager", "kv_cache_memory_bytes")


def engine(given: dict[str, object], *, candidates: int = 7, on_processor: bool = True) -> Any:
    return engine_arguments(
        "target",
        given,
        KNOWN,
        model="/models/target",
        dtype="auto",
        context=4352,
        texts=16,
        likeliest=20,
        candidates=candidates,
        on_processor=on_processor,
    )


def test_vllm_speculates_only_when_a_pass_has_rows_for_candidates() -> None:
    assert engine({})["speculative_config"]["num_speculative_tokens"] == 7
    assert "speculative_config" not in engine({}, candidates=0)


def test_given_argument_wins_over_ours_and_an_unknown_one_is_named() -> None:
    assert engine({"enforce_eager": False})["enforce_eager"] is False
    assert "enforce_eager" not in engine({}, on_processor=False)
    with pytest.raises(EngineError, match=r"target\.vllm\.quantisation: .* mean quantization\?"):
        engine({"quantisation": "awq"})


def sampling(written: int = 0, *, with_seed: bool = False, **parameters: Any) -> dict[str, Any]:
    request = SlotRequest(np.array([1, 2]), 40, "card", SamplingParameters(**parameters))
    return sampling_arguments(request, written, with_seed=with_seed)


def test_end_ids_are_the_requests_alone() -> None:
    asked = sampling(end_ids=(5, 7))
    assert asked["stop_token_ids"] == [5, 7]
    assert asked["ignore_eos"] is True


def test_one_id_to_choose_from_is_greedy() -> None:
    assert sampling(top_k=1, temperature=0.9)["temperature"] == 0.0
    assert "top_k" not in sampling(top_k=1, temperature=0.9)


@pytest.mark.parametrize(("sent", "asked"), [(0.0, 1.0), (0.4, 0.4), (1.0, 1.0)])
def test_top_p_that_is_off_is_one_to_vllm(sent: float, asked: float) -> None:
    assert sampling(temperature=0.9, top_p=sent)["top_p"] == asked


def test_seed_is_sent_only_where_no_candidate_uses_its_noise() -> None:
    assert sampling(temperature=0.9, seed=3, with_seed=True)["seed"] == 3
    assert "seed" not in sampling(temperature=0.9, seed=3)


def test_what_a_lost_process_wrote_counts_for_the_limits() -> None:
    asked = sampling(written=15, min_tokens=20)
    assert (asked["max_tokens"], asked["min_tokens"]) == (25, 5)


def target(**vllm: Any) -> TargetSettings:
    given = {"target": {"engine": "vllm", "threads": 2, "vllm": vllm}}
    return Settings.model_validate(given).target


def test_process_does_not_inherit_what_belongs_to_tritons_python() -> None:
    inherited = {
        "PYTHONHOME": "/x",
        "CARD_CACHE__SLOTS": "3",
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/cuda/lib",
    }
    made = environment_of(target(environment={"VLLM_LOGGING_LEVEL": "INFO"}), inherited)
    assert "PYTHONHOME" not in made
    assert "CARD_CACHE__SLOTS" not in made
    assert made["LD_LIBRARY_PATH"] == "/cuda/lib"
    assert (made["OMP_NUM_THREADS"], made["VLLM_LOGGING_LEVEL"]) == ("2", "INFO")


def test_process_sees_its_devices_alone() -> None:
    made = environment_of(target(devices=[2, 3]), {})
    assert made["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "OMP_NUM_THREADS" not in made


def test_python_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match=r"target\.vllm\.python: /nowhere/python does not exist"):
        vllm_python(target(python="/nowhere/python"))
