"""Requests and answers of clients that do not stream: their models, tensors and content.

`tensorrt_llm` takes words as rows of tokens and a bias for every token. This module converts them
for `card`, which takes words as text and the biases that are not 0. It joins all deltas of a text
into one.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from card.serving.requests.delta import OUTPUTS, Delta
from card.serving.requests.refusal import Refusal, invalid
from card.serving.requests.wire import (
    INPUTS,
    PROMPT_IDS,
    VOCABULARY,
    Bounds,
    GenerateRequest,
    biases,
    one_prompt,
    only_false,
    only_one,
    tensor,
    tensors,
)

WORDS = [2, -1]
"""Dimensions of a list of words: all their tokens, then where each word ends, filled with -1."""


@dataclass(frozen=True, kw_only=True)
class UnaryRequest(GenerateRequest):
    """One request as `ensemble_unary`, `tensorrt_llm` and `llmapi` take it."""

    input_lengths: int | None = tensor("INT32")
    stop_words_list: tuple[int, ...] = tensor("INT32", default=(), most="prompt_tokens", dims=WORDS)
    bad_words_list: tuple[int, ...] = tensor("INT32", default=(), most="prompt_tokens", dims=WORDS)
    embedding_bias: tuple[float, ...] = tensor("FP32", biases, default=(), most=VOCABULARY)
    return_trace: bool = tensor("BOOL", only_false, default=False)
    return_context_logits: bool = tensor("BOOL", only_false, default=False)
    return_generation_logits: bool = tensor("BOOL", only_false, default=False)
    best_of: int = tensor("INT32", only_one, default=1)
    return_finish_reason: bool = tensor("BOOL", default=False)  # without effect
    return_stop_reason: bool = tensor("BOOL", only_false, default=False)


_OWN = {one.name for one in tensors(UnaryRequest)} - {one.name for one in tensors(GenerateRequest)}


def arrays_for_card(
    request: UnaryRequest,
    arrays: Mapping[str, NDArray[Any]],
    prompt: list[int],
    tokenizer: Tokenizer,
    bounds: Bounds,
) -> dict[str, NDArray[Any]]:
    """The tensors of the request as `card` takes them. The request streams, so that deltas show
    whether the client left.

    Raises `Refusal`.
    """
    if request.input_lengths not in (None, len(prompt)):
        raise invalid("input_lengths", request.input_lengths, f"{len(prompt)}, as input_ids has")
    found = {name: array for name, array in arrays.items() if name not in _OWN}
    found["input_ids"] = np.array([prompt], np.int32)
    found["stream"] = np.array([[True]])
    for name in ("stop_words", "bad_words"):
        rows = getattr(request, f"{name}_list")
        words = [*getattr(request, name), *_words(f"{name}_list", rows, tokenizer, bounds)]
        if words:
            found[name] = np.array([[word.encode() for word in words]], np.object_)
    biased = np.flatnonzero(np.array(request.embedding_bias, np.float32))
    if biased.size > (most := bounds.limits.logit_bias):
        why = f"{biased.size} that are not 0; it may have at most {most} (limits.logit_bias)"
        raise Refusal("INVALID_ARGUMENT", f"embedding_bias has {why}", field="embedding_bias")
    if biased.size:
        values = np.array(request.embedding_bias, np.float32)[biased]
        found["logit_bias_ids"] = biased.astype(np.int32)[None]
        found["logit_bias_values"] = values[None]
    return found


def _words(name: str, rows: tuple[int, ...], tokenizer: Tokenizer, bounds: Bounds) -> list[str]:
    """The words of a list of tokens, as text."""
    half = len(rows) // 2
    tokens, ends = rows[:half], [end for end in rows[half:] if end >= 0]
    if ends != sorted(ends) or (ends and ends[-1] > half):
        raise invalid(name, rows, "the tokens of all words and where each ends, filled with -1")
    words, start = [], 0
    for end in ends:
        word = tokens[start:end]
        if any(not 0 <= token < bounds.vocabulary for token in word):
            raise invalid(name, rows, f"token ids, each 0 to {bounds.vocabulary - 1}")
        words.append(tokenizer.decode(word, skip_special_tokens=False))
        start = end
    return words


OUTPUT_IDS, SEQUENCE_LENGTH = "output_ids", "sequence_length"
"""Tensors beside those of the ensemble: INT32 [1, tokens] and [1]."""


def token_outputs(tokens: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The values of these tensors for one answer."""
    return {
        OUTPUT_IDS: np.array([[tokens]], np.int32),
        SEQUENCE_LENGTH: np.array([[len(tokens)]], np.int32),
    }


def gathered(deltas: Iterable[Delta]) -> Delta:
    """All deltas joined; counts are those of the last. Raises `Refusal` if there are none."""
    pieces = list(deltas)
    if not pieces:
        raise Refusal("INTERNAL", "card ended without an answer; see the server's log")
    last = pieces[-1]
    log_probs = (
        None
        if last.log_probs is None
        else tuple(value for piece in pieces for value in piece.log_probs or ())
    )
    return replace(
        last,
        text="".join(piece.text for piece in pieces),
        log_probs=log_probs,
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        details=_joined([piece.details for piece in pieces if piece.details]),
        numbers=last.numbers._replace(accepted_bytes=_accepted_bytes(pieces)),
    )


def _accepted_bytes(pieces: Sequence[Delta]) -> int:
    """Leading bytes of the whole text that came from the cache."""
    total = 0
    for piece in pieces:
        total += piece.numbers.accepted_bytes
        if piece.numbers.accepted_bytes < len(piece.text.encode()):
            break
    return total


def _joined(details: Sequence[str]) -> str:
    """The JSON details of all deltas, joined into one."""
    whole: dict[str, Any] = {}
    for text in details:
        for name, value in json.loads(text).items():
            whole[name] = whole[name] + value if name == "tokens" and name in whole else value
    return json.dumps(whole, separators=(",", ":")) if whole else ""


@dataclass(frozen=True)
class Front:
    """One model that answers once.

    inputs      names of its inputs
    outputs     names of its outputs
    renamed     our names (in `UnaryRequest` and `OUTPUTS`) of tensors that it names otherwise
    made        the tensors that `card` gets in place of lists of tokens
    excludes    whether the answer omits the prompt, unless the request says otherwise
    batched     whether tensors have a leading batch dimension
    parameters  request parameters of its clients that have no effect
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    excludes: bool = False
    batched: bool = True
    parameters: tuple[str, ...] = ("Streaming",)

    def ours(self, name: str) -> str:
        """Our name of a tensor, in `UnaryRequest` or `OUTPUTS`."""
        return self.renamed.get(name, name)

    def in_its_words(self, refusal: Refusal) -> Refusal:
        """The refusal with the client's name of the field."""
        for theirs, ours in {**self.renamed, **self.made}.items():
            if refusal.field == ours:
                message = refusal.message.replace(ours, theirs, 1)
                return Refusal(refusal.code, message, field=theirs)
        return refusal

    def prompt(self, names: Container[str]) -> dict[str, str]:
        """As `one_prompt`."""
        return one_prompt(names) if "text_input" in self.inputs else PROMPT_IDS


ENSEMBLE_UNARY = Front(
    INPUTS,
    tuple(one.name for one in OUTPUTS),
    excludes=True,
    parameters=(),
)

_OF_TEXTS = ("text_output", "accepted_bytes", "details")
_SAMPLING = "sampling_param_"

TENSORRT_LLM = Front(
    (
        *("input_ids", "input_lengths", "request_output_len", "num_return_sequences"),
        *("end_id", "pad_id", "stop_words_list", "bad_words_list", "embedding_bias"),
        *("beam_width", "temperature", "runtime_top_k", "runtime_top_p", "len_penalty"),
        *("repetition_penalty", "min_tokens", "presence_penalty", "frequency_penalty", "seed"),
        *("return_log_probs", "return_context_logits", "return_generation_logits"),
        *("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
        *("exclude_input_in_output", "streaming"),
    ),
    (
        OUTPUT_IDS,
        SEQUENCE_LENGTH,
        *(one.name for one in OUTPUTS if one.name not in _OF_TEXTS),
    ),
    {
        "request_output_len": "max_tokens",
        "runtime_top_k": "top_k",
        "runtime_top_p": "top_p",
        "len_penalty": "length_penalty",
        "streaming": "stream",
    },
    {"stop_words_list": "stop_words", "bad_words_list": "bad_words"},
)

_SAMPLED = {
    **{name: name for name in ("max_tokens", "best_of", "temperature", "top_k", "top_p", "seed")},
    **{name: name for name in ("frequency_penalty", "presence_penalty", "return_perf_metrics")},
    "stop": "stop_words",
    "exclude_input_from_output": "exclude_input_in_output",
}

LLMAPI = Front(
    (
        *("text_input", "streaming", *(f"{_SAMPLING}{name}" for name in _SAMPLED)),
        *("return_finish_reason", "return_stop_reason", "return_cumulative_logprob"),
    ),
    (
        *("text_output", "finish_reason", "cumulative_logprob", "acceptance_rate"),
        *("total_accepted_draft_tokens", "total_draft_tokens", "kv_cache_reused_block"),
        *("kv_cache_alloc_new_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns"),
        *("first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    ),
    {
        **{f"{_SAMPLING}{name}": ours for name, ours in _SAMPLED.items()},
        "streaming": "stream",
        "return_cumulative_logprob": "return_log_probs",
        "cumulative_logprob": "cum_log_probs",
        "kv_cache_reused_block": "kv_cache_reused_blocks",
    },
    batched=False,
)
