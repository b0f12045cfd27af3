"""What a session's request asks of TensorRT-LLM: its `SamplingParams`, and what stands in the way.

Some parameters are *unproven beside candidates*: whether the runtime applies them to every verified
row with that row's own history was never shown. Such a request is decoded without speculation or
refused, as the settings say. Others the runtime *ignores* with and without candidates (TensorRT-LLM
1.2 accepts penalties and bad words and ignores them), or they are not passed on: they are refused.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, ClassVar

from card.cache import SlotRequest
from card.engines.guest.admission import Asked, Obstacle
from card.engines.interface import EngineError

NO_END_ID = -1
"""The runtime demands an end id where it has no tokenizer; this one never occurs."""

OLDEST_VERSION = "1.2.0"
"""Its `Drafter` takes both lengths; those before differ."""

_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


# --- versions -------------------------------------------------------------------------------------


def installed_version() -> str:
    """The version of TensorRT-LLM in this environment, without importing it.

    Raises `EngineError`.
    """
    try:
        return metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        raise EngineError(
            "tensorrt_llm is not installed in this Python; use a Triton container that carries it "
            "(nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3), or set engine: torch"
        ) from None


def check_version(version: str) -> None:
    """Raises `EngineError` for a runtime without the interfaces that are needed."""
    from packaging.version import InvalidVersion, Version  # TensorRT-LLM brings it

    try:
        is_old = Version(version) < Version(OLDEST_VERSION)
    except InvalidVersion:
        raise EngineError(f"tensorrt_llm has the version {version!r}, which names none") from None
    if is_old:
        raise EngineError(f"tensorrt_llm {version} is too old; allowed: {OLDEST_VERSION} or later")


# --- sampling parameters --------------------------------------------------------------------------


def sampling_arguments(request: SlotRequest, max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of `SamplingParams`; what is off is left to the runtime's default.

    max_tokens  how many tokens are still to come; those that a lost target wrote are the prompt's
                to the runtime, so the least number of tokens is lowered by them
    """
    parameters = request.parameters
    written = request.max_tokens - max_tokens
    end_id, *others = parameters.end_ids or (NO_END_ID,)
    arguments: dict[str, Any] = {
        "max_tokens": max_tokens,
        "end_id": end_id,
        "pad_id": max(end_id, 0),
        "ignore_eos": not parameters.end_ids,
        "detokenize": False,
        **_choice(request),
    }
    if parameters.min_tokens > written:
        arguments["min_tokens"] = parameters.min_tokens - written
    if others:
        arguments["stop_token_ids"] = others
    if request.log_probabilities:
        arguments["logprobs"] = 1
    return arguments


def _choice(request: SlotRequest) -> dict[str, Any]:
    """Greedy, or sampling with all three of temperature, top-k and top-p: the runtime takes a
    request for greedy by some of them."""
    parameters = request.parameters
    if parameters.is_greedy:
        return {"top_k": 1}
    top_p = parameters.top_p
    return {
        "temperature": parameters.temperature,
        "top_k": parameters.top_k,
        "top_p": top_p if 0.0 < top_p < 1.0 else 1.0,
        "seed": parameters.seed,
    }


def draft_arguments(max_tokens: int, alternatives: int) -> dict[str, Any]:
    """Of a spine or side branch: the draft's own greedy path and its alternatives per step.

    It goes on behind an end token: what stands there is never reached by the target.
    """
    return {
        "max_tokens": max_tokens,
        "end_id": NO_END_ID,
        "pad_id": 0,
        "ignore_eos": True,
        "detokenize": False,
        "top_k": 1,
        "logprobs": alternatives,
    }


# --- what stands in the way -----------------------------------------------------------------------


class TensorRTRules:
    """The rules of TensorRT-LLM.

    refuses  as of `GuestRules`
    """

    title: ClassVar[str] = "TensorRT-LLM"
    ngrams: ClassVar[bool] = False

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses

    def obstacles(self, asked: Asked) -> list[Obstacle]:
        parameters = asked.parameters
        samples = not parameters.is_greedy
        ignores, unsaid = ": TensorRT-LLM ignores it", ": it is not passed on to TensorRT-LLM"
        likely = "absent or false"
        if samples:
            likely += " when temperature is above 0: TensorRT-LLM lists the likeliest ids"
        guides = "absent: texts of TensorRT-LLM are not guided here"
        return [
            Obstacle(field, allowed, ignored)
            for is_asked, field, allowed, ignored in (
                # whether it is asked for, its field, what is allowed, whether it is never honoured
                *(
                    (
                        getattr(parameters, name) != neutral,
                        name,
                        f"absent or {neutral}{ignores}",
                        True,
                    )
                    for name, neutral in _NEUTRAL.items()
                ),
                (bool(parameters.bad_words), "bad_words", f"absent{ignores}", True),
                (parameters.min_tokens > 0, "min_tokens", "absent or 0", False),
                (parameters.min_p > 0.0, "min_p", f"absent or 0{unsaid}", True),
                (bool(parameters.logit_bias), "logit_bias_ids", f"absent{unsaid}", True),
                (asked.likeliest > 0, "top_log_probs", f"absent or 0{unsaid}", True),
                (
                    asked.prompt_log_probabilities,
                    "return_prompt_log_probs",
                    f"absent or false{unsaid}",
                    True,
                ),
                (asked.log_probabilities, "return_log_probs", likely, samples),
                (asked.guided, "guided_decoding_guide_type", guides, True),
                (asked.seeded and samples, "seed", "absent when temperature is above 0", False),
            )
            if is_asked
        ]
