"""Settings as arguments of vLLM's `EngineArgs`, and a request as those of its `SamplingParams`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from card.cache import SlotRequest
from card.engines.interface import EngineError
from card.sampling import SamplingParameters

KV_BYTES = 1 << 30
"""KV memory on a processor, unless the settings name another size."""
PROPOSER = "card.vllm.proposer.Proposer"


def engine_arguments(
    role: str,
    given: Mapping[str, object],
    known: Collection[str],
    *,
    model: str,
    dtype: str,
    context: int,
    texts: int,
    likeliest: int,
    candidates: int,
    on_processor: bool,
) -> dict[str, Any]:
    """Arguments of `EngineArgs`.

    role          of the model, target or draft
    given         those of the settings
    known         names that this version of vLLM takes
    context       most positions of a text
    texts         most texts at the same time
    likeliest     most likeliest ids of a position
    candidates    most candidates of a text in a pass; 0: vLLM runs without speculation
    on_processor  vLLM runs on a processor

    Raises `EngineError` naming an argument that vLLM does not have.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise EngineError(f"{role}.vllm.{name}: this vLLM has no such argument{meant}")
    arguments: dict[str, Any] = {
        # CARD makes texts and token ids, and says itself which ids end a text.
        "generation_config": "vllm",
        # The library that compiles CARD's own guides.
        "structured_outputs_config": {"backend": "guidance"},
        "model": model,
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": texts,
        "max_logprobs": likeliest,
        "disable_log_stats": True,
        # A pass is planned when the pass before is committed, or its candidates are old.
        "async_scheduling": False,
    }
    if on_processor:
        # Compiling takes a minute and a C++ compiler. By itself vLLM would take 92 % of all memory.
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": KV_BYTES}
    if candidates:
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": candidates,
        }
    return {**arguments, **given}


def sampling_arguments(request: SlotRequest, written: int, *, with_seed: bool) -> dict[str, Any]:
    """Arguments of `SamplingParams`, without bad words, which vLLM only takes as text.

    written    output tokens that are part of the prompt to vLLM, because a lost process wrote them
    with_seed  the noise follows the request's seed
    """
    parameters = request.parameters
    arguments: dict[str, Any] = {
        "detokenize": False,
        # No end id but those of the request: `stop_token_ids`.
        "ignore_eos": True,
        "stop_token_ids": list(parameters.end_ids),
        "max_tokens": request.max_tokens - written,
        "min_tokens": max(0, parameters.min_tokens - written),
        "repetition_penalty": parameters.repetition_penalty,
        "presence_penalty": parameters.presence_penalty,
        "frequency_penalty": parameters.frequency_penalty,
        **_choice(parameters),
    }
    if parameters.logit_bias:
        arguments["logit_bias"] = dict(parameters.logit_bias)
    if with_seed and not parameters.is_greedy:
        arguments["seed"] = parameters.seed
    if request.log_probabilities:
        arguments["logprobs"] = request.likeliest
    if request.prompt_log_probabilities and not written:
        arguments["prompt_logprobs"] = request.likeliest
    return arguments


def _choice(parameters: SamplingParameters) -> dict[str, Any]:
    if parameters.is_greedy:
        return {"temperature": 0.0}
    return {
        "temperature": parameters.temperature,
        "top_k": parameters.top_k,
        "top_p": parameters.top_p if 0.0 < parameters.top_p < 1.0 else 1.0,
        "min_p": parameters.min_p,
    }
