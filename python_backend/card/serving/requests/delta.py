"""The content of a response: a delta of the text, from `card` through `postprocessing` to the
client.

`card` sends a delta to `postprocessing` as three internal tensors, because every tensor of every
response costs the server time. `OUTPUTS` is the table of the tensors that the client gets.

The output `details` holds JSON, for data without a tensor of its own:

    {"prompt": [token, ...],    with return_prompt_log_probs, in the first response with a token
     "tokens": [token, ...],    with return_log_probs, those of this response
     "output_ids": [id, ...],   with draft_key, those of this response
     "speculation": {...},      with return_perf_metrics, in the last response
     "cached_tokens": n,        with it: prompt tokens with reused KV
     "trace": [event, ...]}     with return_trace, the events since the last response

A token is `{"id", "logprob", "top"}`: its log-probability (null for the prompt's first token, which
has no token before it), and the likeliest ids at its position as `[id, logprob]`, likeliest first.
`speculation` is `{"drafts", "accepted_at"}`: the number of target passes that verified candidates,
and the number of accepted candidates by distance behind the committed text. docs/wire.md describes
the events.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.cache import SlotCounters

IMPOSSIBLE = -9999.0
"""Stands for minus infinity, which JSON lacks; OpenAI uses the same number."""


_WRITER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The report of one token.

    log_probability  natural, under the unprocessed logits; None for the first token
    likeliest        likeliest ids at its position, with their log-probabilities
    """

    token: int
    log_probability: float | None
    likeliest: Sequence[tuple[int, float]] = ()

    def as_json(self) -> dict[str, Any]:
        known = self.log_probability
        return {
            "id": self.token,
            "logprob": None if known is None else finite(known),
            "top": [[token, finite(value)] for token, value in self.likeliest],
        }


def written(token: ScoredToken) -> str:
    """The JSON of one token's report."""
    return _WRITER.encode(token.as_json())


def details_json(
    prompt: Sequence[str],
    tokens: Sequence[ScoredToken] | None,
    counters: SlotCounters | None,
    trace: Sequence[Mapping[str, Any]] = (),
    output_ids: Sequence[int] = (),
) -> str:
    """The text of `details`; empty if the request asks for none of it.

    prompt  the report of each of the prompt's tokens, as `written` makes it
    """
    found: dict[str, Any] = {}
    if tokens:
        found["tokens"] = [token.as_json() for token in tokens]
    if output_ids:
        found["output_ids"] = list(output_ids)
    if counters is not None:
        accepted = np.trim_zeros(counters.accepted_at, "b").tolist()
        found["speculation"] = {"drafts": counters.drafts, "accepted_at": accepted}
        found["cached_tokens"] = counters.reused_tokens
    if trace:
        found["trace"] = trace
    fields = [f'"prompt":[{",".join(prompt)}]'] if prompt else []
    if found:
        fields.append(_WRITER.encode(found)[1:-1])
    return f"{{{','.join(fields)}}}" if fields else ""


def finite(value: float) -> float:
    """`value`, with minus infinity replaced, because JSON lacks it."""
    return max(value, IMPOSSIBLE)


FINISH_REASONS = ("", "stop", "length")
"""Empty until the last delta; `stop`: the end id or a stop word; `length`: max_tokens reached."""

SIGN_NS = 1_000_000_000
"""A streaming client gets an empty delta after this time without text, because Triton reports that
a client of the ensemble left only with a response."""

TEXT, NUMBERS, LOG_PROBABILITIES = "delta_text", "delta_numbers", "delta_log_probs"
"""The internal tensors: BYTES [2], text and details; INT64 [fields of `Numbers` + tokens], the
numbers, then the tokens' ids; FP32 [1 + tokens], the sum of all log-probabilities first, NaN if the
request does not ask for them."""


class Numbers(NamedTuple):
    """Whole numbers of a delta. Counts are totals so far. All counts but `foreign_tokens` are 0 if
    the request does not ask for them.

    place, session_id  of the request in the pool; `postprocessing` marks it when the client left
    accepted_bytes     leading bytes of the text that came from the candidate cache
    finish_reason      index into `FINISH_REASONS`
    kv_blocks          blocks that prompt and text fill or begin; `reused` of them came from kept KV
    *_time_ns          the server's monotonic clock; token times are 0 before the first token
    """

    place: int
    session_id: int
    accepted_bytes: int = 0
    finish_reason: int = 0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0
    target_steps: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    foreign_tokens: int = 0
    kv_blocks: int = 0
    reused_kv_blocks: int = 0
    arrival_time_ns: int = 0
    first_scheduled_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0


_NO_COUNTS = ("place", "session_id", "finish_reason")
_COUNTS = [n for n in Numbers._fields if n not in _NO_COUNTS and not n.endswith("_ns")]
_LARGEST_COUNT = (1 << 31) - 1
"""Greatest INT32, the wire's dtype of counts."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One response.

    log_probs      of the tokens since the last delta; None if the request does not ask for them
    cum_log_probs  sum over all tokens so far; 0 if the request does not ask for it
    tokens         ids of the tokens since the last delta
    details        JSON (see `card.serving.requests.delta`); empty if the request asks for none
    """

    text: str
    numbers: Numbers
    log_probs: tuple[float, ...] | None = None
    cum_log_probs: float = 0.0
    tokens: tuple[int, ...] = ()
    details: str = ""

    def pack(self) -> dict[str, NDArray[Any]]:
        """The internal tensors, each with the leading batch dimension."""
        asked = self.log_probs is not None
        log_probs = [self.cum_log_probs if asked else math.nan, *(self.log_probs or ())]
        return {
            TEXT: np.array([[self.text.encode(), self.details.encode()]], np.object_),
            NUMBERS: np.array([[*self.numbers, *self.tokens]], np.int64),
            LOG_PROBABILITIES: np.array([log_probs], np.float32),
        }

    @classmethod
    def unpack(cls, arrays: Mapping[str, NDArray[Any]], most_tokens: int) -> Delta:
        """Read what `pack` wrote, of at most so many tokens. Raises ValueError that names the
        tensor if it is something else."""
        _check_sizes(arrays, most_tokens)
        text, details = map(_text_of, arrays[TEXT].reshape(-1).tolist())
        fields = len(Numbers._fields)
        whole = arrays[NUMBERS].reshape(-1).tolist()
        numbers, tokens = Numbers(*whole[:fields]), tuple(whole[fields:])
        if tokens and not (min(tokens) >= 0 and max(tokens) <= _LARGEST_COUNT):
            raise ValueError("not a delta of card: a token's id")
        cumulative, *log_probs = arrays[LOG_PROBABILITIES].reshape(-1).tolist()
        if not 0 <= numbers.finish_reason < len(FINISH_REASONS):
            raise ValueError(f"not a delta of card: finish_reason {numbers.finish_reason}")
        for name in _COUNTS:
            if not 0 <= getattr(numbers, name) <= _LARGEST_COUNT:
                raise ValueError(f"not a delta of card: {name} {getattr(numbers, name)}")
        if math.isnan(cumulative):
            return cls(text, numbers, tokens=tokens, details=details)
        return cls(text, numbers, tuple(log_probs), cumulative, tokens, details)

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the candidates that were verified; 0 if there were none."""
        drafted = self.numbers.total_draft_tokens
        return self.numbers.total_accepted_draft_tokens / drafted if drafted else 0.0


def _check_sizes(arrays: Mapping[str, NDArray[Any]], most_tokens: int) -> None:
    fields = len(Numbers._fields)
    sizes = {
        TEXT: (2, 2),
        NUMBERS: (fields, fields + most_tokens),
        LOG_PROBABILITIES: (1, 1 + most_tokens),
    }
    for name, (least, most) in sizes.items():
        size = arrays[name].size if name in arrays else 0
        if not least <= size <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise ValueError(f"not a delta of card: {name} holds {size} values, not {allowed}")


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not a delta of card: {TEXT} is no UTF-8 text") from error


@dataclass(frozen=True)
class Output:
    """One tensor that a client gets (docs/wire.md); `dims` as in `config.pbtxt`, `array` as on the
    wire."""

    name: str
    dtype: str
    dims: list[int]
    array: Callable[[Delta], NDArray[Any]]


_NUMPY: dict[str, Any] = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


def _number(name: str, dtype: str, value: Callable[[Delta], float] | None = None) -> Output:
    read = value or (lambda delta: getattr(delta.numbers, name))
    return Output(name, dtype, [1], lambda delta: np.array([[read(delta)]], _NUMPY[dtype]))


def _text(name: str, value: Callable[[Delta], str]) -> Output:
    return Output(name, "BYTES", [1], lambda delta: np.array([[value(delta).encode()]], np.object_))


OUTPUTS: tuple[Output, ...] = (
    Output(
        "text_output",
        "BYTES",
        [-1],
        # TensorRT-LLM's postprocessing leaves the batch dimension out, and its clients expect that.
        lambda delta: np.array([delta.text.encode()], np.object_),
    ),
    _number("accepted_bytes", "INT32"),
    _text("finish_reason", lambda delta: FINISH_REASONS[delta.numbers.finish_reason]),
    _number("cum_log_probs", "FP32", lambda delta: delta.cum_log_probs),
    Output(
        "output_log_probs",
        "FP32",
        [-1, -1],
        lambda delta: np.array(
            [[(0.0,) if delta.log_probs is None else delta.log_probs]], np.float32
        ),
    ),
    _text("details", lambda delta: delta.details),
    _number("num_input_tokens", "INT32"),
    _number("num_output_tokens", "INT32"),
    _number("acceptance_rate", "FP32", lambda delta: delta.acceptance_rate),
    _number("total_accepted_draft_tokens", "INT32"),
    _number("total_draft_tokens", "INT32"),
    _number("target_steps", "INT32"),
    _number("cache_queries", "INT32"),
    _number("cache_hits", "INT32"),
    _number("foreign_tokens", "INT32"),
    *(_number(name, "INT64") for name in Numbers._fields if name.endswith("_time_ns")),
    _number("batch_index", "INT32", lambda _: 0),
    _number("sequence_index", "INT32", lambda _: 0),
    _number(
        "kv_cache_alloc_new_blocks",
        "INT32",
        lambda delta: delta.numbers.kv_blocks - delta.numbers.reused_kv_blocks,
    ),
    _number("kv_cache_reused_blocks", "INT32", lambda delta: delta.numbers.reused_kv_blocks),
    _number("kv_cache_alloc_total_blocks", "INT32", lambda delta: delta.numbers.kv_blocks),
)
