"""Which requests vLLM takes, and which it decodes without candidates."""

from __future__ import annotations

from typing import Any

import pytest

from card.sampling import SamplingParameters
from card.serving.requests.refusal import Refusal
from card.serving.requests.slot_request import Admission
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings


def decided(speculation: dict[str, Any] | None = None, **request: Any) -> str:
    target = {"engine": "vllm"}
    settings = Settings.model_validate({"target": target, "speculation": speculation or {}})
    sent = GenerateRequest(text_input="x", **request)
    names = SamplingParameters.__dataclass_fields__
    parameters = SamplingParameters(
        **{name: value for name, value in request.items() if name in names},
        logit_bias=tuple(zip(sent.logit_bias_ids, sent.logit_bias_values, strict=True)),
    )
    by = Admission(settings)
    return by.decoding(sent, parameters, request.get("decoding") or "auto", by.drafter(sent))


@pytest.mark.parametrize(
    "request_",
    [
        {"temperature": 0.8, "top_k": 9, "top_p": 0.9},
        {"repetition_penalty": 1.2, "presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"min_tokens": 3, "return_log_probs": True, "top_log_probs": 3},
        {"seed": 5},
        {"drafter": "ngram"},
        {"guided_decoding_guide_type": "json"},
    ],
)
def test_request_is_speculated_when_vllm_keeps_it_beside_candidates(
    request_: dict[str, Any],
) -> None:
    assert decided(**request_) == "auto"


def test_seeded_sampling_is_decoded_without_candidates() -> None:
    assert decided(seed=5, temperature=0.7) == "autoregressive"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"temperature": 2.1}, "temperature is 2.1; it must be at most 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty is -2.5; it must be from -2 to 2"),
        ({"min_p": 0.2}, "min_p is 0.2; it must be absent or 0: vLLM has no such parameter"),
        ({"guided_decoding_guide_type": "json", "min_tokens": 3}, "min_tokens is 3"),
        ({"decoding": "draft_then_verify"}, "vLLM's loop waits for no draft"),
    ],
)
def test_request_is_refused_by_name_when_vllm_cannot_keep_it(
    request_: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refusal, match=said):
        decided(**request_)


def test_bias_and_min_p_are_served_when_vllm_runs_without_speculation() -> None:
    asked = {"min_p": 0.2, "logit_bias_ids": (3,), "logit_bias_values": (1.0,)}
    assert decided({"rows": 1}, **asked) == "auto"
