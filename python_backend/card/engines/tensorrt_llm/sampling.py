"""A session's request as `tensorrt_llm.SamplingParams`, one to one."""

from __future__ import annotations

from typing import Any

from card.cache import SlotRequest

NO_END_ID = -1
"""The runtime demands an end id where it has no tokenizer; this one never occurs."""


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
    for name, neutral in (
        ("repetition_penalty", 1.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
    ):
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
