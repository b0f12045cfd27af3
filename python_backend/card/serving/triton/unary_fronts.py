"""The models that answer once, with the names of their tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from card.serving.requests.delta import OUTPUTS
from card.serving.requests.parsing import INPUTS, one_prompt
from card.serving.requests.refusal import Refusal
from card.serving.requests.unary import OUTPUT_IDS, SEQUENCE_LENGTH


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

    def prompt(self, names: Container[str]) -> tuple[str, ...]:
        """The tensor that must hold the prompt. Raises `Refusal` if the request has two prompts."""
        return one_prompt(names) if "text_input" in self.inputs else ("input_ids",)


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
