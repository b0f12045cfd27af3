"""The two models that answer once: which tensors each has, and what it calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from card.serving.requests.delta import OUTPUTS
from card.serving.requests.refusal import Refusal
from card.serving.requests.unary_answer import OUTPUT_IDS, SEQUENCE_LENGTH
from card.serving.requests.wire import GenerateRequest, tensors


@dataclass(frozen=True)
class Front:
    """One of them.

    inputs   its names of what it takes
    outputs  its names of what it gives
    renamed  ours of those of its inputs that `UnaryRequest` calls otherwise
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    renamed: Mapping[str, str]

    def ours(self, name: str) -> str:
        """The input as `UnaryRequest` calls it."""
        return self.renamed.get(name, name)

    def in_its_words(self, refusal: Refusal) -> Refusal:
        """The refusal with the field called as its clients call it."""
        for theirs, ours in self.renamed.items():
            if refusal.field == ours:
                message = refusal.message.replace(ours, theirs, 1)
                return Refusal(refusal.code, message, field=theirs)
        return refusal


ENSEMBLE_UNARY = Front(
    tuple(one.name for one in tensors(GenerateRequest)), tuple(one.name for one in OUTPUTS), {}
)

_OF_TEXTS = ("text_output", "accepted_bytes", "details")

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
        *(
            one.name
            for one in OUTPUTS
            if one.name not in ("text_output", "accepted_bytes", "details")
        ),
    ),
    {
        "request_output_len": "max_tokens",
        "runtime_top_k": "top_k",
        "runtime_top_p": "top_p",
        "len_penalty": "length_penalty",
        "streaming": "stream",
    },
)
