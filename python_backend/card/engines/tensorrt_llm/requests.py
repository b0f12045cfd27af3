"""What a session's request asks of TensorRT-LLM: its `SamplingParams`, and what stands in the way.

Some parameters are *unproven beside candidates*: whether the runtime applies them to every verified
row with that row's own history was never shown. Such a request is decoded without speculation or
refused, as the settings say. Others the installed runtime *ignores*, with and without candidates:
they are refused.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any, ClassVar

from card.cache import SlotRequest
from card.engines.guest.admission import Asked, Obstacle
from card.engines.interface import EngineError
from card.sampling import SamplingParameters

NO_END_ID = -1
"""The runtime demands an end id where it has no tokenizer; this one never occurs."""

OLDEST_VERSION = (1, 1)

_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

_PENALTIES_SINCE = (1, 3, 0, 24)
"""TorchSampler gained penalties and bad words in July 2026 (pull requests 16485 and 16052);
1.3.0rc24 is the first release that documents penalties."""


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
    if _numbers(version) < OLDEST_VERSION:
        raise EngineError(f"tensorrt_llm {version} is too old; allowed: 1.1 or later")


def _numbers(version: str) -> tuple[int, ...]:
    """1.3.0rc24 as (1, 3, 0, 24); a final release stands behind all its candidates."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?", version)
    if match is None:
        raise EngineError(f"the version of tensorrt_llm is {version!r}; allowed: 1.1 or later")
    major, minor, patch, candidate = match.groups()
    return (int(major), int(minor), int(patch or 0), int(candidate or 1 << 30))


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
    for name, neutral in _NEUTRAL.items():
        if (value := getattr(parameters, name)) != neutral:
            arguments[name] = value
    if others:
        arguments["stop_token_ids"] = others
    if parameters.bad_words:
        arguments["bad_token_ids"] = [word[0] for word in parameters.bad_words]
    if request.log_probabilities:
        arguments["logprobs"] = 1
    return arguments


def _choice(request: SlotRequest) -> dict[str, Any]:
    """Greedy, or sampling with all three of temperature, top-k and top-p.

    All three are sent because versions differ in what is greedy: up to 1.1 a temperature alone is.
    """
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
    """The rules of an installed version of TensorRT-LLM.

    refuses  as of `GuestRules`
    """

    title: ClassVar[str] = "TensorRT-LLM"
    ngrams: ClassVar[bool] = False

    def __init__(self, version: str, *, refuses: bool) -> None:
        self._version = version
        self.refuses = refuses

    def obstacles(self, asked: Asked) -> list[Obstacle]:
        return obstacles(
            asked.parameters,
            seeded=asked.seeded,
            log_probabilities=asked.log_probabilities,
            version=self._version,
            likeliest=asked.likeliest,
            prompt_log_probabilities=asked.prompt_log_probabilities,
            guided=asked.guided,
        )


def obstacles(
    parameters: SamplingParameters,
    *,
    seeded: bool,
    log_probabilities: bool,
    version: str,
    likeliest: int = 0,
    prompt_log_probabilities: bool = False,
    guided: bool = False,
) -> list[Obstacle]:
    """The parameters of one request that cannot be had together with candidates.

    seeded  whether the client gave a seed
    guided  whether a guide says what the text must be
    """
    samples, bad_words = not parameters.is_greedy, parameters.bad_words
    older = _numbers(version) < _PENALTIES_SINCE
    old = ": this version of TensorRT-LLM ignores it" if older else ""
    unsaid = ": it is not passed on to TensorRT-LLM"
    words = "absent" + old
    if not older and any(len(word) > 1 for word in bad_words):
        words = "words of one token each: TensorRT-LLM is given tokens, not text"
    likely = "absent or false"
    if samples:
        likely += " when temperature is above 0: TensorRT-LLM lists the likeliest ids"
    guides = "absent: texts of TensorRT-LLM are not guided here"
    found = [
        # whether it is asked for, its field, what is allowed, whether the runtime ignores it
        *(
            (getattr(parameters, name) != neutral, name, f"absent or {neutral}{old}", older)
            for name, neutral in _NEUTRAL.items()
        ),
        (parameters.min_tokens > 0, "min_tokens", "absent or 0", False),
        (parameters.min_p > 0.0, "min_p", f"absent or 0{unsaid}", True),
        (bool(parameters.logit_bias), "logit_bias_ids", f"absent{unsaid}", True),
        (likeliest > 0, "top_log_probs", f"absent or 0{unsaid}", True),
        (prompt_log_probabilities, "return_prompt_log_probs", f"absent or false{unsaid}", True),
        (bool(bad_words), "bad_words", words, words != "absent"),
        (log_probabilities, "return_log_probs", likely, samples),
        (guided, "guided_decoding_guide_type", guides, True),
        (seeded and samples, "seed", "absent when temperature is above 0", False),
    ]
    return [Obstacle(field, allowed, ignored) for asked, field, allowed, ignored in found if asked]
