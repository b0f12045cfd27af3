"""Unary answers: deltas become one, and what TensorRT-LLM's clients send becomes ours."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from real_pair import TARGET
from tokenizers import Tokenizer

from card.serving.requests.allowed import Bounds
from card.serving.requests.delta import Delta, Numbers
from card.serving.requests.parsing import parse
from card.serving.requests.refusal import Refusal
from card.serving.requests.unary_answer import gathered
from card.serving.requests.unary_request import UnaryRequest, arrays_for_card
from card.settings import LimitSettings

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
BOUNDS = Bounds(LimitSettings(), vocabulary=TOKENIZER.get_vocab_size())
PROMPT = [5, 6, 7]


def numbers(**more: int) -> Numbers:
    return Numbers(3, 9)._replace(**more)


def test_the_deltas_of_a_text_are_gathered_into_one() -> None:
    deltas = [
        Delta("", numbers()),
        Delta("ab", numbers(accepted_bytes=2), (-0.5,), -0.5, (1,), '{"prompt":[7],"tokens":[1]}'),
        Delta("cd", numbers(accepted_bytes=1, finish_reason=2, num_output_tokens=3), (-1.0, -2.0),
              -3.5, (2, 3), '{"tokens":[2,3],"speculation":{"drafts":1}}'),
    ]  # fmt: skip
    whole = gathered(iter(deltas))
    assert (whole.text, whole.tokens, whole.log_probs) == ("abcd", (1, 2, 3), (-0.5, -1.0, -2.0))
    assert whole.cum_log_probs == -3.5
    assert whole.numbers == numbers(accepted_bytes=3, finish_reason=2, num_output_tokens=3)
    assert json.loads(whole.details) == {
        "prompt": [7], "tokens": [1, 2, 3], "speculation": {"drafts": 1},
    }  # fmt: skip
    with pytest.raises(Refusal, match="without an answer"):
        gathered([])


def for_card(**values: Any) -> dict[str, Any]:
    dtypes = {"embedding_bias": np.float32, "streaming": np.bool_}
    arrays = {name: np.array([v], dtypes.get(name, np.int32)) for name, v in values.items()}
    request = parse(UnaryRequest, arrays, BOUNDS)
    return arrays_for_card(request, arrays, PROMPT, TOKENIZER, BOUNDS)


def test_words_of_tokens_become_text() -> None:
    """All tokens, then where each word ends, filled up with -1."""
    first, second = (
        TOKENIZER.encode(text, add_special_tokens=False).ids for text in ("return", "\n\n")
    )
    tokens = [*first, *second]
    ends = [len(first), len(tokens)] + [-1] * (len(tokens) - 2)
    found = for_card(stop_words_list=[tokens, ends[: len(tokens)]])
    assert found["stop_words"].tolist() == [[b"return", b"\n\n"]]
    assert "stop_words_list" not in found
    with pytest.raises(Refusal, match="where each ends"):
        for_card(bad_words_list=[tokens, [len(tokens) + 1] + [-1] * (len(tokens) - 1)])


def test_a_bias_of_all_tokens_becomes_that_of_some() -> None:
    bias = np.zeros(BOUNDS.vocabulary)
    bias[[4, 9]] = 1.5, -2.0
    found = for_card(embedding_bias=bias)
    assert found["logit_bias_ids"].tolist() == [[4, 9]]
    assert found["logit_bias_values"].tolist() == [[1.5, -2.0]]
    with pytest.raises(Refusal, match="one for each of"):
        for_card(embedding_bias=[1.0])


def test_a_length_that_is_not_the_prompts_is_refused() -> None:
    assert "input_lengths" not in for_card(input_lengths=[3])
    with pytest.raises(Refusal, match="input_lengths is 4; it must be 3"):
        for_card(input_lengths=[4])
    with pytest.raises(Refusal, match="return_context_logits is 1; it must be false"):
        for_card(return_context_logits=[1])
