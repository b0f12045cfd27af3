"""Which settings and requests TensorRT-LLM honours, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest

from card.engines import EngineError
from card.engines.guest.admission import Asked
from card.engines.tensorrt_llm.requests import TensorRTRules, check_version
from card.sampling import SamplingParameters
from card.serving.requests.refusal import Refusal
from card.serving.requests.slot_request import Admission
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings, SettingsError, load_settings

TARGET = {"engine": "tensorrt_llm"}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.1,
    "bad_words": ((3,),),
}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (Asked(SamplingParameters()), {}),
        (Asked(SamplingParameters(temperature=0.8, top_k=9, top_p=0.9)), {}),
        (Asked(SamplingParameters(), seeded=True), {}),
        (Asked(SamplingParameters(**PENALTIES)), dict.fromkeys(PENALTIES, True)),
        (Asked(SamplingParameters(logit_bias=((3, 1.0),))), {"logit_bias_ids": True}),
        (Asked(SamplingParameters(min_p=0.1)), {"min_p": True}),
        (Asked(SamplingParameters(), log_probabilities=True), {"return_log_probs": False}),
        (
            Asked(SamplingParameters(temperature=0.8), log_probabilities=True),
            {"return_log_probs": True},
        ),
        (
            Asked(SamplingParameters(min_tokens=3, temperature=0.5), seeded=True),
            {"min_tokens": False, "seed": False},
        ),
    ],
)
def test_obstacles_are_named_when_the_runtime_does_not_honour_a_parameter(
    asked: Asked, found: dict[str, bool]
) -> None:
    """By field: whether the runtime never honours it, or it is unproven beside candidates."""
    named = TensorRTRules(refuses=False).obstacles(asked)
    assert {obstacle.field: obstacle.ignored for obstacle in named} == found


def test_runtime_is_refused_when_it_lacks_the_interfaces() -> None:
    with pytest.raises(EngineError, match="too old"):
        check_version("1.2.0rc1")
    check_version("1.2.0")
    check_version("1.3.0rc24")


def decided(policy: str, **request: Any) -> str:
    target = {**TARGET, "tensorrt_llm": {"unproven_parameters": policy}}
    by = Admission(Settings.model_validate({"target": target}))
    sent = GenerateRequest(text_input="x", **request)
    parameters = SamplingParameters(
        temperature=sent.temperature,
        repetition_penalty=sent.repetition_penalty,
        min_tokens=sent.min_tokens,
    )
    return by.decoding(sent, parameters, "card", by.drafter(sent))


@pytest.mark.parametrize(
    "request_",
    [
        {"min_tokens": 3},
        {"return_log_probs": True},
        {"seed": 5, "temperature": 0.5},
    ],
)
def test_unproven_parameter_goes_without_speculation_or_is_refused_when_settings_say_so(
    request_: dict[str, Any],
) -> None:
    assert decided("without_speculation", **request_) == "autoregressive"
    with pytest.raises(Refusal, match=f"{next(iter(request_))} is .*; it must be"):
        decided("refuse", **request_)


def test_ignored_parameter_is_refused_when_settings_allow_unproven_ones() -> None:
    with pytest.raises(Refusal, match=r"TensorRT-LLM ignores it"):
        decided("without_speculation", repetition_penalty=1.2)
    with pytest.raises(Refusal, match="guided_decoding_guide_type is 'json'; it must be absent"):
        decided("without_speculation", guided_decoding_guide_type="json")
    with pytest.raises(Refusal, match=r"top_log_probs is .* not passed on"):
        decided("without_speculation", top_log_probs=3)
    with pytest.raises(Refusal, match=r"return_prompt_log_probs is .* not passed on"):
        decided("without_speculation", return_prompt_log_probs=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"target": {"tensorrt_llm": {"devices": [0, 1]}}}, "must name 1 different device"),
        (
            {"target": {"tensorrt_llm": {"devices": [1, 1], "tensor_parallel": 2}}},
            "must name 2 different device",
        ),
        (
            {"target": {**TARGET, "tensorrt_llm": {"devices": [0, 1], "tensor_parallel": 2}}},
            "has not run on hardware",
        ),
        (
            {"target": TARGET, "draft": {**TARGET, "tensorrt_llm": {"devices": [0]}}},
            "share device 0, and their .* must stay below 1 together",
        ),
        (
            {"target": {**TARGET, "dtype": "int8"}},
            "int8 does not run under engine tensorrt_llm",
        ),
        (
            {"target": TARGET, "speculation": {"decoding": "draft_then_verify"}},
            "draft_then_verify waits for the draft",
        ),
    ],
)
def test_settings_are_refused_when_they_cannot_work(
    overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(**overrides)
