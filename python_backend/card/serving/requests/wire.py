"""The one table of input tensors, and what else stands in a request: its parameters.

Parsing, refusals and the test of the `config.pbtxt` files derive from the table. Names and dtypes
are those of TensorRT-LLM's Triton ensemble; `docs/wire.md` names our additions.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

from card.constraints import GUIDE_TYPES
from card.serving.requests import tensors as allowed
from card.serving.requests.refusal import invalid
from card.serving.requests.tensors import refused_tensor, tensor, tensors
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS

DECODINGS = tuple(PACINGS)

PARAMETERS = ("id", "priority", "timeout")
"""Known request parameters; Triton's own begin with `triton_`."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One request as `ensemble`, `preprocessing` and `card` receive it.

    Clients send the prompt as text or as tokens. `card` always gets the tokens, and also the text
    if the answer must begin with it.
    """

    text_input: str | None = tensor("BYTES", "The prompt.", allowed.bounded_text)
    input_ids: tuple[int, ...] = tensor(
        "INT32",
        "The prompt's tokens.",
        allowed.token_ids,
        default=(),
        most="prompt_tokens",
    )
    max_tokens: int | None = tensor(
        "INT32",
        "How many new tokens at most; limits.default_max_tokens if absent.",
        allowed.whole_number(1, "max_tokens"),
    )
    stream: bool = tensor("BOOL", "Send the text as it is generated.", default=False)
    temperature: float = tensor(
        "FP32", "Sampling temperature; 0 is greedy.", allowed.between(0, math.inf), default=0.0
    )
    top_k: int = tensor(
        "INT32",
        "Sample from the k likeliest tokens; 0 is off.",
        allowed.between(0, math.inf),
        default=0,
    )
    top_p: float = tensor(
        "FP32",
        "Sample from the likeliest tokens of mass p; 0 and 1 are off.",
        allowed.between(0, 1),
        default=0.0,
    )
    min_p: float = tensor(
        "FP32",
        "Sample from tokens at least this fraction as likely as the likeliest; 0 is off.",
        allowed.between(0, 1),
        default=0.0,
    )
    repetition_penalty: float = tensor(
        "FP32",
        "Divides positive scores of tokens seen; 1 is off.",
        allowed.between(0.01, 100.0),
        default=1.0,
    )
    presence_penalty: float = tensor(
        "FP32",
        "Subtracted once from scores of tokens seen.",
        allowed.between(-100.0, 100.0),
        default=0.0,
    )
    frequency_penalty: float = tensor(
        "FP32",
        "Subtracted from scores for every occurrence.",
        allowed.between(-100.0, 100.0),
        default=0.0,
    )
    min_tokens: int = tensor(
        "INT32",
        "end_id and stop_token_ids are not chosen before this many new tokens.",
        allowed.whole_number(0, "max_tokens"),
        default=0,
    )
    min_length: int = tensor(
        "INT32",
        "min_tokens under its older name, which genai-perf sends; the larger of the two holds.",
        allowed.whole_number(0, "max_tokens"),
        default=0,
    )
    seed: int | None = tensor("UINT64", "The same seed gives the same text; absent: a fresh one.")
    stop_words: tuple[str, ...] = tensor(
        "BYTES",
        "The text ends before the first of these; a special token ends it as end_id does.",
        allowed.short_words,
        default=(),
        most="stop_words",
    )
    bad_words: tuple[str, ...] = tensor(
        "BYTES",
        "Token sequences of these are never completed.",
        allowed.short_words,
        default=(),
        most="bad_words",
    )
    end_id: int | None = tensor(
        "INT32",
        "The token that ends the text; -1: none; absent: the model's.",
        allowed.token_or_none,
    )
    stop_token_ids: tuple[int, ...] = tensor(
        "INT32",
        "Further tokens that end the text.",
        allowed.token_ids_or_none,
        default=(),
        most="stop_token_ids",
    )
    logit_bias_ids: tuple[int, ...] = tensor(
        "INT32",
        "Tokens that logit_bias_values bias.",
        allowed.token_ids_or_none,
        default=(),
        most="logit_bias",
    )
    logit_bias_values: tuple[float, ...] = tensor(
        "FP32",
        "Added to the logits of logit_bias_ids, one for each.",
        allowed.biases,
        default=(),
        most="logit_bias",
    )
    pad_id: int | None = tensor("INT32", "Accepted, without effect.", allowed.token_or_none)
    return_log_probs: bool = tensor(
        "BOOL", "Report log-probabilities, in details also each token's id.", default=False
    )
    top_log_probs: int = tensor(
        "INT32",
        "With log-probabilities: also report this number of likeliest tokens, in details.",
        allowed.whole_number(0, "top_log_probs"),
        default=0,
    )
    return_prompt_log_probs: bool = tensor(
        "BOOL", "Report log-probabilities of the prompt's tokens, in details.", default=False
    )
    exclude_input_in_output: bool = tensor(
        "BOOL", "False: a text that is not streamed begins with the prompt.", default=True
    )
    num_return_sequences: int = tensor("INT32", "How many texts.", allowed.only_one, default=1)
    beam_width: int = tensor("INT32", "Beam width.", allowed.only_one, default=1)
    length_penalty: float | None = tensor(
        "FP32", "Accepted, without effect: it ranks beams.", allowed.between(-math.inf, math.inf)
    )
    return_num_input_tokens: bool = tensor("BOOL", "Report the prompt's tokens.", default=False)
    return_num_output_tokens: bool = tensor("BOOL", "Report the text's tokens.", default=False)
    return_perf_metrics: bool = tensor("BOOL", "Report times and acceptance.", default=False)
    return_trace: bool = tensor(
        "BOOL", "Report each step and the candidate tree, in details of a stream.", default=False
    )
    decoding: str | None = tensor(
        "BYTES", f"{', '.join(DECODINGS)}; absent: speculation.decoding.", allowed.one_of(DECODINGS)
    )
    drafter: str | None = tensor(
        "BYTES",
        "The drafter of the request, one of those that are loaded.",
        allowed.short("word_bytes"),
    )
    forbidden_drafter: str | None = tensor(
        "BYTES", "A loaded drafter that the request must not use.", allowed.short("word_bytes")
    )
    growth: str | None = tensor(
        "BYTES",
        f"How the draft's tree grows: {', '.join(GROWTHS)}; absent: as the pacing or "
        "speculation.growth has it.",
        allowed.one_of(GROWTHS),
    )
    acceptance: str | None = tensor(
        "BYTES",
        "The acceptance rule; a rule that changes the text only where "
        "speculation.lossy_acceptance lists it.",
        allowed.short("word_bytes"),
    )
    draft_key: str | None = tensor(
        "BYTES",
        "A device drafts: it sends candidates to the model remote with this fresh secret.",
        allowed.secret,
    )
    cache_salt: str = tensor(
        "BYTES",
        "Only requests with the same one share kept KV (cache.isolated says what absent means) and "
        "n-grams (speculation.shared_ngrams; absent: none).",
        allowed.short("word_bytes"),
        default="",
    )
    skip_reading_prefix_cache: bool = tensor(
        "BOOL", "Read the whole prompt, and keep nothing of this text.", default=False
    )
    prediction: str | None = tensor(
        "BYTES",
        "A likely text: its n-grams are proposed. It changes no token.",
        allowed.bounded_text,
    )
    guided_decoding_guide_type: str = tensor(
        "BYTES",
        f"The type of the guide: {', '.join(GUIDE_TYPES)}.",
        allowed.known_guide_type,
        default="",
    )
    guided_decoding_guide: str = tensor(
        "BYTES",
        "The schema, expression, grammar or choices.",
        allowed.short("guide_bytes"),
        default="",
    )


INPUTS = tuple(one.name for one in tensors(GenerateRequest))


def check_parameters(parameters: Iterable[str], inputs: Iterable[str] = INPUTS) -> None:
    """Refuse unknown request parameters. A misspelt name of `inputs` arrives as a parameter."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith("triton_"):
            known = f"one of {', '.join(PARAMETERS)}; inputs are {', '.join(inputs)}"
            raise invalid("parameter", name, known)


def one_prompt(names: Container[str]) -> tuple[str, ...]:
    """The tensor that must hold the prompt. Raises `Refusal` if the request has two prompts."""
    if "input_ids" not in names:
        return ("text_input",)
    if "text_input" in names:
        raise refused_tensor("input_ids", "and text_input are both there; send one of them")
    return ("input_ids",)
