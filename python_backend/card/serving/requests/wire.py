"""The one table of input tensors, which values they may have, and how a request is read.

The fields of `GenerateRequest` *are* the table: a field is a tensor, its default is the value of an
absent tensor, and its metadata holds dtype, shape and allowed values. Parsing, refusals and the
test of the `config.pbtxt` files derive from it. Names and dtypes are those of TensorRT-LLM's Triton
ensemble; docs/wire.md says what each means and names our additions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.constraints import GUIDE_TYPES
from card.serving.requests.refusal import Refusal, invalid, missing
from card.settings import LimitSettings
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS

DECODINGS = tuple(PACINGS)

PROMPT_IDS = {"input_ids": "the prompt's tokens"}

PARAMETERS = ("id", "priority", "timeout")
"""Known request parameters; Triton's own begin with `triton_`."""

VOCABULARY = "vocabulary"
"""Limit of a list with one element for each id."""

_SECRET = re.compile("[0-9a-f]{32}")

Request = TypeVar("Request")


@dataclass(frozen=True)
class Bounds:
    """The settings and the number of token ids, on which the allowed values depend."""

    limits: LimitSettings
    vocabulary: int


Check = Callable[[Any, Bounds], str | None]
"""Returns None for an allowed value, else a text that names the allowed values."""


@dataclass(frozen=True)
class Tensor:
    """Dtype and shape of one input.

    most  for a list, the setting of `limits` that bounds its elements, or `vocabulary`; None: one
          value
    dims  shape without the leading batch dimension
    """

    name: str
    dtype: str
    most: str | None
    check: Check | None
    dims: list[int]

    @property
    def many(self) -> bool:
        return self.most is not None


def tensor(
    dtype: str,
    check: Check | None = None,
    *,
    default: Any = None,
    most: str | None = None,
    dims: Sequence[int] | None = None,
) -> Any:
    """A field of the table; see `Tensor`."""
    shape = [-1 if most else 1] if dims is None else list(dims)
    metadata = {"dtype": dtype, "check": check, "most": most, "dims": shape}
    return field(default=default, metadata=metadata)


def tensors(table: type[Any]) -> tuple[Tensor, ...]:
    """The table as a list, in the order of its fields."""
    return tuple(Tensor(name=f.name, **f.metadata) for f in fields(table))


def bounded_text(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.prompt_bytes
    if value and len(value.encode()) <= most:
        return None
    return f"text of at least one character and at most {most} bytes (limits.prompt_bytes)"


def biases(values: tuple[float, ...], _: Bounds) -> str | None:
    # NaN fails this comparison.
    return None if all(-100.0 <= value <= 100.0 for value in values) else "between -100.0 and 100.0"


def only_false(value: bool, _: Bounds) -> str | None:
    """Refuse a feature that is not offered."""
    return "false: it is not offered" if value else None


def only_one(value: int, _: Bounds) -> str | None:
    return None if value == 1 else "1; for several texts send a request each, with its own seed"


def between(low: float, high: float) -> Check:
    """Allow finite numbers from `low` to `high`, not NaN."""

    def check(value: float, _: Bounds) -> str | None:
        if low <= value <= high and math.isfinite(value):
            return None
        return f"between {low} and {high}" if math.isfinite(high) else f"a number, {low} or more"

    return check


def whole_number(low: int, limit: str) -> Check:
    """Allow whole numbers from `low` to the setting `limit` of `limits`."""

    def check(value: int, bounds: Bounds) -> str | None:
        most = getattr(bounds.limits, limit)
        return None if low <= value <= most else f"between {low} and {most} (limits.{limit})"

    return check


def short(limit: str) -> Check:
    """Allow at most as many bytes as the setting `limit` of `limits`."""

    def check(value: str, bounds: Bounds) -> str | None:
        most = getattr(bounds.limits, limit)
        return None if len(value.encode()) <= most else f"at most {most} bytes (limits.{limit})"

    return check


def token_or_none(value: int, bounds: Bounds) -> str | None:
    known = -1 <= value < bounds.vocabulary
    return None if known else f"a token id, 0 to {bounds.vocabulary - 1}, or -1 for none"


def short_words(words: tuple[str, ...], bounds: Bounds) -> str | None:
    most = bounds.limits.word_bytes
    if all(len(word.encode()) <= most for word in words):
        return None
    return f"words of at most {most} bytes each (limits.word_bytes)"


def one_of(keys: Collection[str]) -> Check:
    def check(value: str, _: Bounds) -> str | None:
        return None if value in keys else f"one of {', '.join(keys)}"

    return check


def secret(value: str, _: Bounds) -> str | None:
    return None if _SECRET.fullmatch(value) else "32 hexadecimal digits, drawn at random"


def known_guide_type(value: str, _: Bounds) -> str | None:
    return None if value in ("", *GUIDE_TYPES) else f"one of {', '.join(GUIDE_TYPES)}"


def token_ids(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if not ids or (min(ids) >= 0 and max(ids) < bounds.vocabulary):
        return None
    return f"token ids, each 0 to {bounds.vocabulary - 1}"


def some_token_ids(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    wrong = token_ids(ids or (-1,), bounds)
    return None if wrong is None else f"one or more {wrong}"


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One request as `ensemble`, `preprocessing` and `card` receive it.

    Clients send the prompt as text or as tokens. `card` always gets the tokens, and also the text
    if the answer must begin with it.
    """

    text_input: str | None = tensor("BYTES", bounded_text)
    input_ids: tuple[int, ...] = tensor("INT32", some_token_ids, default=(), most="prompt_tokens")
    max_tokens: int | None = tensor("INT32", whole_number(1, "max_tokens"))
    stream: bool = tensor("BOOL", default=False)
    # sampling
    temperature: float = tensor("FP32", between(0, math.inf), default=0.0)
    top_k: int = tensor("INT32", between(0, math.inf), default=0)
    top_p: float = tensor("FP32", between(0, 1), default=0.0)
    min_p: float = tensor("FP32", between(0, 1), default=0.0)
    repetition_penalty: float = tensor("FP32", between(0.01, 100.0), default=1.0)
    presence_penalty: float = tensor("FP32", between(-100.0, 100.0), default=0.0)
    frequency_penalty: float = tensor("FP32", between(-100.0, 100.0), default=0.0)
    min_tokens: int = tensor("INT32", whole_number(0, "max_tokens"), default=0)
    min_length: int = tensor("INT32", whole_number(0, "max_tokens"), default=0)
    """`min_tokens` under its older name, which genai-perf sends; the larger of the two holds."""
    seed: int | None = tensor("UINT64")
    stop_words: tuple[str, ...] = tensor("BYTES", short_words, default=(), most="stop_words")
    bad_words: tuple[str, ...] = tensor("BYTES", short_words, default=(), most="bad_words")
    end_id: int | None = tensor("INT32", token_or_none)
    stop_token_ids: tuple[int, ...] = tensor("INT32", token_ids, default=(), most="stop_token_ids")
    logit_bias_ids: tuple[int, ...] = tensor("INT32", token_ids, default=(), most="logit_bias")
    logit_bias_values: tuple[float, ...] = tensor("FP32", biases, default=(), most="logit_bias")
    pad_id: int | None = tensor("INT32", token_or_none)  # without effect
    num_return_sequences: int = tensor("INT32", only_one, default=1)
    beam_width: int = tensor("INT32", only_one, default=1)
    length_penalty: float | None = tensor(  # without effect: it ranks beams
        "FP32", between(-math.inf, math.inf)
    )
    # what the answer reports
    return_log_probs: bool = tensor("BOOL", default=False)
    top_log_probs: int = tensor("INT32", whole_number(0, "top_log_probs"), default=0)
    return_prompt_log_probs: bool = tensor("BOOL", default=False)
    exclude_input_in_output: bool = tensor("BOOL", default=True)
    return_num_input_tokens: bool = tensor("BOOL", default=False)
    return_num_output_tokens: bool = tensor("BOOL", default=False)
    return_perf_metrics: bool = tensor("BOOL", default=False)
    return_trace: bool = tensor("BOOL", default=False)
    # speculation
    decoding: str | None = tensor("BYTES", one_of(DECODINGS))
    drafter: str | None = tensor("BYTES", short("word_bytes"))
    forbidden_drafter: str | None = tensor("BYTES", short("word_bytes"))
    growth: str | None = tensor("BYTES", one_of(GROWTHS))
    acceptance: str | None = tensor("BYTES", short("word_bytes"))
    draft_key: str | None = tensor("BYTES", secret)
    prediction: str | None = tensor("BYTES", bounded_text)
    # kept KV and guides
    cache_salt: str = tensor("BYTES", short("word_bytes"), default="")
    skip_reading_prefix_cache: bool = tensor("BOOL", default=False)
    guided_decoding_guide_type: str = tensor("BYTES", known_guide_type, default="")
    guided_decoding_guide: str = tensor("BYTES", short("guide_bytes"), default="")


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


def parse(
    table: type[Request],
    arrays: Mapping[str, NDArray[Any]],
    bounds: Bounds,
    required: Mapping[str, str] | None = None,
) -> Request:
    """Read and check the tensors of one request, each [1, 1] or, for a list, [1, n].

    required  what to send, by the names of the tensors that must be there

    Raises `Refusal` naming the field, its value and the allowed values.
    """
    check_shapes(table, {name: array.shape for name, array in arrays.items()}, bounds.limits)
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name, what in (required or {}).items():
        if name not in arrays:
            raise missing(name, what)
    values = {}
    for name, array in arrays.items():
        tensor = known[name]
        if tensor.most == VOCABULARY and array.size != bounds.vocabulary:
            one_each = f"it must have one for each of {bounds.vocabulary} tokens"
            raise refused_tensor(name, f"has {array.size} elements; {one_each}")
        value = _read(tensor, array)
        if tensor.many and tensor.most != VOCABULARY:
            _check_count(tensor, len(value), bounds.limits)
        if tensor.check is not None and (allowed := tensor.check(value, bounds)) is not None:
            raise invalid(name, value, allowed)
        values[name] = value
    return table(**values)


def check_shapes(
    table: type[Any], shapes: Mapping[str, Sequence[int]], limits: LimitSettings
) -> None:
    """Refuse tensors that the table lacks, or that hold too many elements.

    This check comes first, because converting numbers to Python objects makes all other requests
    wait. (Triton's backend has already converted words when it made the request.)
    """
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name, shape in shapes.items():
        if name not in known:
            raise invalid("input", name, f"one of {', '.join(known)}")
        count = math.prod(shape)
        if known[name].many:
            # A single word may be the empty word, which stands for no words. `parse` checks lists
            # with an element for each token.
            if count != 1 and known[name].most != VOCABULARY:
                _check_count(known[name], count, limits)
        elif count != 1:
            why = f"has shape {list(shape)}; it must be one value, of shape [1, 1]"
            raise refused_tensor(name, why)


def _check_count(tensor: Tensor, count: int, limits: LimitSettings) -> None:
    assert tensor.most is not None
    allowed: int = getattr(limits, tensor.most)
    if count > allowed:
        raise refused_tensor(
            tensor.name,
            f"has {count} elements; it must have at most {allowed} (limits.{tensor.most})",
        )


def refused_tensor(name: str, why: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{name} {why}", field=name)


def _read(tensor: Tensor, array: NDArray[Any]) -> Any:
    values = [_element(tensor, item) for item in array.reshape(-1).tolist()]
    if tensor.many:
        # Clients of TensorRT-LLM send [[""]] for no words.
        return tuple(value for value in values if value != "")
    return values[0]


def _element(tensor: Tensor, item: Any) -> Any:
    if tensor.dtype == "FP32":
        # The client's number: 0.8, and not 0.800000011920929, its 32-bit form.
        return float(str(np.float32(item)))
    if tensor.dtype != "BYTES":
        return item
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(tensor.name, item, f"valid UTF-8 ({error.reason} at {error.start})") from None
