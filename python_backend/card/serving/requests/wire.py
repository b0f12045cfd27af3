"""The one table of input tensors, and what else stands in a request: its parameters.

Parsing, refusals and the test of the `config.pbtxt` files derive from the table. Names and dtypes
are those of TensorRT-LLM's Triton ensemble; `docs/wire.md` names our additions.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

from card.serving.requests import tensors as allowed
from card.serving.requests.refusal import invalid
from card.serving.requests.tensors import refused_tensor, tensor, tensors
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS

DECODINGS = tuple(PACINGS)

PROMPT_IDS = {"input_ids": "the prompt's tokens"}

PARAMETERS = ("id", "priority", "timeout")
"""Known request parameters; Triton's own begin with `triton_`."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One request as `ensemble`, `preprocessing` and `card` receive it.

    Clients send the prompt as text or as tokens. `card` always gets the tokens, and also the text
    if the answer must begin with it.
    """

    text_input: str | None = tensor("BYTES", allowed.bounded_text)
    input_ids: tuple[int, ...] = tensor(
        "INT32", allowed.token_ids, default=(), most="prompt_tokens"
    )
    max_tokens: int | None = tensor("INT32", allowed.whole_number(1, "max_tokens"))
    stream: bool = tensor("BOOL", default=False)
    # sampling
    temperature: float = tensor("FP32", allowed.between(0, math.inf), default=0.0)
    top_k: int = tensor("INT32", allowed.between(0, math.inf), default=0)
    top_p: float = tensor("FP32", allowed.between(0, 1), default=0.0)
    min_p: float = tensor("FP32", allowed.between(0, 1), default=0.0)
    repetition_penalty: float = tensor("FP32", allowed.between(0.01, 100.0), default=1.0)
    presence_penalty: float = tensor("FP32", allowed.between(-100.0, 100.0), default=0.0)
    frequency_penalty: float = tensor("FP32", allowed.between(-100.0, 100.0), default=0.0)
    min_tokens: int = tensor("INT32", allowed.whole_number(0, "max_tokens"), default=0)
    min_length: int = tensor("INT32", allowed.whole_number(0, "max_tokens"), default=0)
    """`min_tokens` under its older name, which genai-perf sends; the larger of the two holds."""
    seed: int | None = tensor("UINT64")
    stop_words: tuple[str, ...] = tensor(
        "BYTES", allowed.short_words, default=(), most="stop_words"
    )
    bad_words: tuple[str, ...] = tensor("BYTES", allowed.short_words, default=(), most="bad_words")
    end_id: int | None = tensor("INT32", allowed.token_or_none)
    stop_token_ids: tuple[int, ...] = tensor(
        "INT32", allowed.token_ids_or_none, default=(), most="stop_token_ids"
    )
    logit_bias_ids: tuple[int, ...] = tensor(
        "INT32", allowed.token_ids_or_none, default=(), most="logit_bias"
    )
    logit_bias_values: tuple[float, ...] = tensor(
        "FP32", allowed.biases, default=(), most="logit_bias"
    )
    pad_id: int | None = tensor("INT32", allowed.token_or_none)  # without effect
    num_return_sequences: int = tensor("INT32", allowed.only_one, default=1)
    beam_width: int = tensor("INT32", allowed.only_one, default=1)
    length_penalty: float | None = tensor(  # without effect: it ranks beams
        "FP32", allowed.between(-math.inf, math.inf)
    )
    # what the answer reports
    return_log_probs: bool = tensor("BOOL", default=False)
    top_log_probs: int = tensor("INT32", allowed.whole_number(0, "top_log_probs"), default=0)
    return_prompt_log_probs: bool = tensor("BOOL", default=False)
    exclude_input_in_output: bool = tensor("BOOL", default=True)
    return_num_input_tokens: bool = tensor("BOOL", default=False)
    return_num_output_tokens: bool = tensor("BOOL", default=False)
    return_perf_metrics: bool = tensor("BOOL", default=False)
    return_trace: bool = tensor("BOOL", default=False)
    # speculation
    decoding: str | None = tensor("BYTES", allowed.one_of(DECODINGS))
    drafter: str | None = tensor("BYTES", allowed.short("word_bytes"))
    forbidden_drafter: str | None = tensor("BYTES", allowed.short("word_bytes"))
    growth: str | None = tensor("BYTES", allowed.one_of(GROWTHS))
    acceptance: str | None = tensor("BYTES", allowed.short("word_bytes"))
    draft_key: str | None = tensor("BYTES", allowed.secret)
    prediction: str | None = tensor("BYTES", allowed.bounded_text)
    # kept KV and guides
    cache_salt: str = tensor("BYTES", allowed.short("word_bytes"), default="")
    skip_reading_prefix_cache: bool = tensor("BOOL", default=False)
    guided_decoding_guide_type: str = tensor("BYTES", allowed.known_guide_type, default="")
    guided_decoding_guide: str = tensor("BYTES", allowed.short("guide_bytes"), default="")


INPUTS = tuple(one.name for one in tensors(GenerateRequest))


def check_parameters(parameters: Iterable[str], inputs: Iterable[str] = INPUTS) -> None:
    """Refuse unknown request parameters. A misspelt name of `inputs` arrives as a parameter."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith("triton_"):
            known = f"one of {', '.join(PARAMETERS)}; inputs are {', '.join(inputs)}"
            raise invalid("parameter", name, known)


def one_prompt(names: Container[str]) -> dict[str, str]:
    """The tensor that must hold the prompt, and what it holds. Raises `Refusal` if the request has
    two prompts."""
    if "input_ids" not in names:
        return {"text_input": "the prompt"}
    if "text_input" in names:
        raise refused_tensor("input_ids", "and text_input are both there; send one of them")
    return PROMPT_IDS
