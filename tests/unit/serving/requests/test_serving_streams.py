"""From tokens to deltas, and from deltas to an answer that is sent once."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from follower_double import LETTERS
from real_pair import TARGET
from tokenizers import Tokenizer

from card.cache import SlotCounters
from card.serving.requests.delta import SIGN_NS, Delta, Numbers, ScoredToken
from card.serving.requests.refusal import Refusal
from card.serving.requests.streams import Stream
from card.serving.requests.unary import UnaryRequest, arrays_for_card, gathered
from card.serving.requests.wire import Bounds, GenerateRequest, parse
from card.settings import LimitSettings
from card.text import Detokenizer

COUNTERS = SlotCounters(
    steps=4, queries=4, hits=3, misses=1, corrections=1, drafts=3, drafted=10, accepted=5,
    reused_tokens=2,
    foreign=2, re_roots=2, restarts=1, layers=6, lost_layers=1, saved_rows=0,
    tokens_per_step=np.zeros(65, np.int64),
    accepted_at=np.array([3, 1, 1, 0], np.int64),
)  # fmt: skip
GATHER_NS = 1_000


def ids(text: str) -> list[int]:
    return [ord(letter) - 97 for letter in text]


def stream(**request: Any) -> Stream:
    asked = GenerateRequest(input_ids=tuple(ids("xyz")), **{"stream": True, **request})
    detokenizer = Detokenizer(LETTERS, asked.input_ids, asked.stop_words)
    return Stream(asked, detokenizer, "xyz", arrival_ns=1, kv_block=2)


def push(one: Stream, text: str, accepted: str = "", now_ns: int = 0) -> None:
    """`accepted` holds a `+` for every token that came from the cache."""
    flags = [mark == "+" for mark in accepted.ljust(len(text))]
    one.push(ids(text), flags, [-0.5] * len(text), now_ns)


def take(one: Stream, now_ns: int = 0) -> Delta:
    return one.take(3, 9, COUNTERS, now_ns)


def test_stream_when_there_is_no_text_sends_an_empty_delta_each_second() -> None:
    one = stream()
    push(one, "a")
    take(one, 5)
    assert not one.is_due(4 + SIGN_NS, GATHER_NS)
    assert one.is_due(5 + SIGN_NS, GATHER_NS)
    assert take(one, 5 + SIGN_NS).text == ""
    assert not one.is_due(6 + SIGN_NS, GATHER_NS)


@pytest.mark.parametrize(
    ("pushes", "accepted_bytes"),
    [
        ([("abc", "++")], 2),
        ([("ab", "++"), ("cd", "+")], 3),
        ([("ab", "+"), ("cd", "++")], 1),
        ([("ab", ""), ("cd", "++")], 0),
    ],
)
def test_gathered_deltas_count_the_leading_bytes_that_the_cache_gave(
    pushes: list[tuple[str, str]], accepted_bytes: int
) -> None:
    one = stream()
    for text, accepted in pushes:
        push(one, text, accepted)
    assert take(one).numbers.accepted_bytes == accepted_bytes
    push(one, "e", "+")
    assert take(one).numbers.accepted_bytes == 1


def test_details_tell_tokens_once_and_speculation_at_the_end() -> None:
    one = stream(return_log_probs=True, return_perf_metrics=True, top_log_probs=1)
    one.score_prompt([ScoredToken(23, None)])
    assert take(one).details == ""  # a sign of life while the rest is written
    one.score_prompt([ScoredToken(24, -math.inf, [(1, -0.25)])])
    one.push(ids("ab"), [False, True], [-0.5, -1.0], 0, [[(0, -0.5)], [(7, -0.75)]])
    assert json.loads(take(one).details) == {
        "prompt": [
            {"id": 23, "logprob": None, "top": []},
            {"id": 24, "logprob": -9999.0, "top": [[1, -0.25]]},
        ],
        "tokens": [
            {"id": 0, "logprob": -0.5, "top": [[0, -0.5]]},
            {"id": 1, "logprob": -1.0, "top": [[7, -0.75]]},
        ],
    }
    one.push(ids("c"), [False], [-2.0], 0, [[(2, -2.0)]])
    one.finish("length")
    last = json.loads(take(one).details)
    assert [token["id"] for token in last["tokens"]] == [2]
    assert last["speculation"] == {"drafts": 3, "accepted_at": [3, 1, 1]}
    assert last["cached_tokens"] == 2
    assert "prompt" not in last


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
    with pytest.raises(Refusal, match=f"token ids, each 0 to {BOUNDS.vocabulary - 1}"):
        for_card(bad_words_list=[[BOUNDS.vocabulary], [1]])


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
