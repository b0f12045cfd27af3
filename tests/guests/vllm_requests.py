"""Requests with each field of the wire, and what vLLM alone is asked for the same text."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from real_pair import PAIR

ROOT = Path(__file__).resolve().parents[2]
MAX_TOKENS = 48
_SAMPLED = {"temperature": 0.75, "seed": 11}
_WORD = 264
"""An id that the pair's target often writes."""


@dataclass(frozen=True)
class Tried:
    """A request with one field, and its answer. Numbers have few bits, for the wire has 32.

    fields    tensors of the request, beside prompt and `max_tokens`
    sampling  arguments of vLLM's `SamplingParams` for the same text; None: `refused` says why the
              request is not taken
    guide     arguments of vLLM's structured outputs
    echoes    the text begins with the prompt
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] | None = field(default_factory=dict)
    guide: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    echoes: bool = False


def refused(said: str, **fields: Any) -> Tried:
    return Tried(fields, None, refused=said)


def both(**fields: Any) -> Tried:
    """vLLM's name is that of the wire."""
    return Tried(fields, fields)


def floats(*values: float) -> Any:
    return np.array([values], np.float32)


_REGEX = "[a-f]{12}-[0-9]{6}"

FIELDS: dict[str, Tried] = {
    "text_input": Tried(),
    "max_tokens": both(max_tokens=7),
    "stream": Tried({"stream": True}),
    "temperature": both(**_SAMPLED),
    "top_k": both(**_SAMPLED, top_k=7),
    "top_p": both(**_SAMPLED, top_p=0.75),
    "seed": both(temperature=1.25, seed=2**40 + 5),
    "min_p": refused("min_p is", min_p=floats(0.1)),
    "repetition_penalty": both(repetition_penalty=1.25),
    "presence_penalty": both(presence_penalty=0.5),
    "frequency_penalty": both(frequency_penalty=0.5),
    "min_tokens": both(min_tokens=20, stop_token_ids=[_WORD]),
    "min_length": Tried(
        {"min_length": 20, "stop_token_ids": [_WORD]},
        {"min_tokens": 20, "stop_token_ids": [_WORD]},
    ),
    "stop_words": Tried({"stop_words": ["self", "("]}, {"stop": ["self", "("]}),
    "bad_words": both(bad_words=["self"]),
    "end_id": Tried({"end_id": _WORD}, {"stop_token_ids": [_WORD], "ignore_eos": True}),
    "stop_token_ids": both(stop_token_ids=[_WORD, 12]),
    "logit_bias_ids": refused("logit_bias", logit_bias_ids=[3], logit_bias_values=floats(1.0)),
    "logit_bias_values": refused("logit_bias", logit_bias_values=floats(1.0)),
    "pad_id": Tried({"pad_id": 3}),
    "return_log_probs": Tried({"return_log_probs": True}, {"logprobs": 0}),
    "top_log_probs": Tried({"return_log_probs": True, "top_log_probs": 2}, {"logprobs": 2}),
    "return_prompt_log_probs": Tried({"return_log_probs": True, "return_prompt_log_probs": True}),
    "exclude_input_in_output": Tried({"exclude_input_in_output": False}, echoes=True),
    "num_return_sequences": refused("num_return_sequences is 2", num_return_sequences=2),
    "beam_width": refused("beam_width is 2", beam_width=2),
    "length_penalty": Tried({"length_penalty": floats(1.0)}),
    "return_num_input_tokens": Tried({"return_num_input_tokens": True}),
    "return_num_output_tokens": Tried({"return_num_output_tokens": True}),
    "return_perf_metrics": Tried({"return_perf_metrics": True}),
    "return_trace": Tried({"return_trace": True, "stream": True}),
    "decoding": Tried({"decoding": "autoregressive"}),
    "drafter": Tried({"drafter": "ngram"}),
    "forbidden_drafter": Tried({"forbidden_drafter": "tree"}),
    "growth": Tried({"growth": "layered"}),
    "acceptance": refused("acceptance is 'loose'", acceptance="loose"),
    "draft_key": Tried({"draft_key": "0123456789abcdef" * 2, "stream": True}),
    "cache_salt": Tried({"cache_salt": "mine"}),
    "skip_reading_prefix_cache": Tried({"skip_reading_prefix_cache": True}),
    "guided_decoding_guide_type": Tried(
        {"guided_decoding_guide_type": "regex", "guided_decoding_guide": _REGEX},
        guide={"regex": _REGEX},
    ),
    "guided_decoding_guide": refused("guided_decoding_guide_type", guided_decoding_guide="a"),
}
"""By the field that is tried; `input_ids` and `prediction` depend on the prompt."""


def vllm_alone(asked: Sequence[tuple[str, Tried]], context: int) -> list[tuple[str, float | None]]:
    """Text and sum of log-probabilities that vLLM alone gives to each prompt."""
    requests = [
        {
            "prompt": prompt,
            "sampling": {"max_tokens": MAX_TOKENS, **(tried.sampling or {})},
            "guide": tried.guide,
        }
        for prompt, tried in asked
    ]
    done = subprocess.run(
        [
            ROOT / ".venv-vllm/bin/python",
            ROOT / "tests/guests/vllm_alone.py",
            PAIR / "target",
            str(context),
        ],
        input=json.dumps(requests),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=300,
    )
    return [(text, total) for text, total in json.loads(done.stdout.splitlines()[-1])]
