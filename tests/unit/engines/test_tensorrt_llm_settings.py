"""Settings that TensorRT-LLM cannot serve are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from card.settings import SettingsError, load_settings

TARGET = {"engine": "tensorrt_llm"}


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
            "has not yet run on hardware",
        ),
        ({"target": {"tensorrt_llm": {"kv_block_tokens": 48}}}, "must be a power of two"),
        (
            {"target": TARGET, "draft": {**TARGET, "tensorrt_llm": {"devices": [0]}}},
            "share device 0, and their .* must stay below 1 together",
        ),
        ({"target": {**TARGET, "dtype": "int8"}}, "int8 does not run on engine tensorrt_llm"),
        (
            {"target": TARGET, "speculation": {"decoding": "draft_then_verify"}},
            "its loop waits for no draft",
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
