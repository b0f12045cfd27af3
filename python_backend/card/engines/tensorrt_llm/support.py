"""Which request parameters the runtime honours, beside candidates or at all.

Two kinds are told apart. Some are *unproven beside candidates*: whether they are applied to every
verified row with that row's own history was never shown, so such a request is decoded without
speculation or refused, as the settings say. Others the installed runtime *does not honour* even
without candidates: its sampler ignores them, or what they ask for is not promised. They are refused
whatever the settings say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from card.engines.interface import EngineError
from card.sampling import SamplingParameters

OLDEST_VERSION = (1, 1)

_HONOURED_SINCE = {
    "repetition_penalty": (1, 3, 0, 24),
    "presence_penalty": (1, 3, 0, 24),
    "frequency_penalty": (1, 3, 0, 24),
    "bad_words": (1, 3, 0, 24),
}
"""TorchSampler gained these in July 2026 (pull requests 16485 and 16052); 1.3.0rc24 is the first
release whose documentation lists penalties."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A parameter that stands in the way, by its name in a request.

    allowed  what may be sent instead
    ignored  whether the runtime does not honour it even without speculation
    """

    field: str
    allowed: str
    ignored: bool = False


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
    found = [
        Obstacle(name, f"absent or {neutral}")
        for name, neutral in (
            ("repetition_penalty", 1.0),
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("min_tokens", 0),
        )
        if getattr(parameters, name) != neutral
    ]
    found += [
        Obstacle(field, f"{allowed}: it is not passed on to TensorRT-LLM", ignored=True)
        for field, allowed, is_wanted in (
            ("min_p", "absent or 0", parameters.min_p > 0.0),
            ("logit_bias_ids", "absent", bool(parameters.logit_bias)),
            ("top_log_probs", "absent or 0", likeliest > 0),
            ("return_prompt_log_probs", "absent or false", prompt_log_probabilities),
        )
        if is_wanted
    ]
    if parameters.bad_words:
        found.append(Obstacle("bad_words", "absent"))
    if log_probabilities and parameters.is_greedy:
        found.append(Obstacle("return_log_probs", "absent or false"))
    elif log_probabilities:
        why = "absent or false when temperature is above 0: TensorRT-LLM lists the likeliest ids"
        found.append(Obstacle("return_log_probs", why, ignored=True))
    if guided:
        why = "absent: texts of TensorRT-LLM are not guided here"
        found.append(Obstacle("guided_decoding_guide_type", why, ignored=True))
    if seeded and not parameters.is_greedy:
        found.append(Obstacle("seed", "absent when temperature is above 0"))
    return [_judged(obstacle, parameters, _numbers(version)) for obstacle in found]


def _judged(
    obstacle: Obstacle, parameters: SamplingParameters, version: tuple[int, ...]
) -> Obstacle:
    if version < _HONOURED_SINCE.get(obstacle.field, ()):
        why = f"{obstacle.allowed}: this version of TensorRT-LLM ignores it"
        return Obstacle(obstacle.field, why, ignored=True)
    if obstacle.field == "bad_words" and any(len(word) > 1 for word in parameters.bad_words):
        why = "words of one token each: TensorRT-LLM is given tokens, not text"
        return Obstacle(obstacle.field, why, ignored=True)
    return obstacle


def _numbers(version: str) -> tuple[int, ...]:
    """1.3.0rc24 as (1, 3, 0, 24); a final release stands behind all its candidates."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?", version)
    if match is None:
        raise EngineError(f"the version of tensorrt_llm is {version!r}; allowed: 1.1 or later")
    major, minor, patch, candidate = match.groups()
    return (int(major), int(minor), int(patch or 0), int(candidate or 1 << 30))


def check_version(version: str) -> None:
    """Raises `EngineError` for a runtime without the interfaces that are needed."""
    if _numbers(version) < OLDEST_VERSION:
        raise EngineError(f"tensorrt_llm {version} is too old; allowed: 1.1 or later")
