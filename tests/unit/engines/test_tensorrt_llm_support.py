"""Which settings and requests TensorRT-LLM honours, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest

from card.engines import EngineError
from card.engines.tensorrt_llm.support import check_version, obstacles
from card.sampling import SamplingParameters
from card.serving.requests.refusal import Refusal
from card.serving.requests.slot_request import Admission
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings, SettingsError, load_settings

VERSIONS = ["1.1.0", "1.2.1", "1.3.0rc24"]
TARGET = {"engine": "tensorrt_llm"}


def fields(version: str, **parameters: Any) -> dict[str, bool]:
    """The obstacles of a request: whether the runtime ignores them altogether."""
    seeded, log_probabilities = parameters.pop("seeded", False), parameters.pop("logs", False)
    found = obstacles(
        SamplingParameters(**parameters),
        seeded=seeded,
        log_probabilities=log_probabilities,
        version=version,
    )
    return {obstacle.field: obstacle.ignored for obstacle in found}


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_greedy_and_plain_sampling_stand_in_nobodys_way(version: str) -> None:
    assert fields(version) == {}
    assert fields(version, temperature=0.8, top_k=9, top_p=0.9) == {}
    assert fields(version, seeded=True) == {}, "a seed means nothing to greedy"


@pytest.mark.parametrize(
    ("version", "ignored"), [("1.1.0", True), ("1.2.1", True), ("1.3.0rc24", False)]
)
def test_penalties_and_bad_words_are_ignored_by_older_samplers(version: str, ignored: bool) -> None:
    assert fields(
        version, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1,
        bad_words=((3,),),
    ) == dict.fromkeys(
        ("repetition_penalty", "presence_penalty", "frequency_penalty", "bad_words"), ignored
    )  # fmt: skip


def test_bad_words_of_several_tokens_cannot_be_said_to_a_runtime_without_text() -> None:
    assert fields("1.3.0", bad_words=((3,), (4, 5))) == {"bad_words": True}


def test_what_is_not_passed_on_is_refused_whatever_the_settings_say() -> None:
    asked: dict[str, Any] = {"min_p": 0.1, "top_log_probs": 3, "return_prompt_log_probs": True}
    by = admission("without_speculation")
    for field, value in asked.items():
        parameters = SamplingParameters(min_p=0.1) if field == "min_p" else SamplingParameters()
        request = GenerateRequest(text_input="x", **{field: value})
        with pytest.raises(Refusal, match=f"{field} is .* not passed on"):
            by.decoding(request, parameters, "card", "tree")
    assert fields("1.3.0", logit_bias=((3, 1.0),)) == {"logit_bias_ids": True}


def test_the_rest_is_unproven_beside_candidates() -> None:
    assert fields("1.2.1", min_tokens=3, temperature=0.5, seeded=True) == {
        "min_tokens": False,
        "seed": False,
    }
    assert fields("1.2.1", logs=True) == {"return_log_probs": False}


@pytest.mark.parametrize("version", VERSIONS)
def test_log_probabilities_of_sampled_tokens_are_not_promised(version: str) -> None:
    """The runtime lists the likeliest ids of a step; the drawn one may not be among them."""
    assert fields(version, logs=True, temperature=0.8) == {"return_log_probs": True}


@pytest.mark.parametrize("version", ["1.0.0", "0.21.0"])
def test_a_runtime_without_the_interfaces_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match="too old"):
        check_version(version)


def admission(policy: str, version: str = "1.3.0rc24") -> Admission:
    target = {**TARGET, "tensorrt_llm": {"unproven_parameters": policy}}
    return Admission(Settings.model_validate({"target": target}), lambda: version)


def decided(by: Admission, wanted: str = "card", **request: Any) -> str:
    sent = GenerateRequest(**request)
    parameters = SamplingParameters(
        temperature=sent.temperature,
        repetition_penalty=sent.repetition_penalty,
        min_tokens=sent.min_tokens,
    )
    return by.decoding(sent, parameters, wanted, by.drafter(sent))


UNPROVEN: list[dict[str, Any]] = [
    {"repetition_penalty": 1.2},
    {"min_tokens": 3},
    {"return_log_probs": True},
    {"seed": 5, "temperature": 0.5},
]


@pytest.mark.parametrize("request_", UNPROVEN)
def test_unproven_parameters_switch_speculation_off_by_default(request_: dict[str, Any]) -> None:
    assert decided(admission("without_speculation"), **request_) == "autoregressive"


@pytest.mark.parametrize("request_", UNPROVEN)
def test_or_are_refused_by_name(request_: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=f"{next(iter(request_))} is .*; it must be"):
        decided(admission("refuse"), **request_)


def test_what_the_runtime_ignores_is_refused_whatever_the_setting() -> None:
    older = admission("without_speculation", version="1.2.1")
    with pytest.raises(Refusal, match="this version of TensorRT-LLM ignores it"):
        decided(older, repetition_penalty=1.2)
    with pytest.raises(Refusal, match="guided_decoding_guide_type is 'json'; it must be absent"):
        decided(older, guided_decoding_guide_type="json")


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
        ({"target": {"tensorrt_llm": {"kv_block_tokens": 48}}}, "must be a power of two"),
        (
            {"target": TARGET, "draft": {**TARGET, "tensorrt_llm": {"devices": [0]}}},
            "share device 0, and their .* must stay below 1 together",
        ),
        ({"target": {**TARGET, "dtype": "int8"}}, "int8 does not run on a GPU"),
        (
            {"target": TARGET, "speculation": {"decoding": "draft_then_verify"}},
            "draft_then_verify waits for the draft",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(**overrides)


def test_by_default_both_models_have_devices_of_their_own() -> None:
    settings = load_settings(engine="tensorrt_llm")
    assert not set(settings.target.tensorrt_llm.devices) & set(settings.draft.tensorrt_llm.devices)


def test_one_device_is_shared_where_the_shares_fit() -> None:
    half = {**TARGET, "tensorrt_llm": {"devices": [3], "kv_fraction": 0.4}}
    settings = load_settings(target=half, draft=half)
    assert settings.draft.tensorrt_llm.devices == settings.target.tensorrt_llm.devices == (3,)


def test_float16_needs_no_device_where_tensorrt_llm_has_its_own() -> None:
    assert load_settings(target={**TARGET, "dtype": "float16"}).target.dtype == "float16"
