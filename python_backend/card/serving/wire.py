"""What a request may say: the one table of input tensors.

The fields of `GenerateRequest` *are* the table: a field is a tensor, its default is what holds
when the tensor is absent, and its metadata says how it travels and which values are allowed.
Parsing, refusals and the test of the `config.pbtxt` files derive from it. Names and dtypes are
those of TensorRT-LLM's Triton ensemble; `decoding` is an addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.serving.refusal import Refusal, invalid, missing
from card.settings import LimitSettings
from card.speculation.pacing import PACINGS

DECODINGS = tuple(PACINGS)
DATA_TYPES = {"BYTES": "TYPE_STRING", "BOOL": "TYPE_BOOL", "INT32": "TYPE_INT32",
              "INT64": "TYPE_INT64", "UINT64": "TYPE_UINT64", "FP32": "TYPE_FP32"}  # fmt: skip
"""Names in `config.pbtxt` of the dtypes on the wire."""

PARAMETERS = ("id", "priority", "timeout")
"""Request parameters that are understood; Triton's own begin with `triton_`."""


@dataclass(frozen=True)
class Bounds:
    """What the allowed values depend on: the settings, and how many token ids there are."""

    limits: LimitSettings
    vocabulary: int


Check = Callable[[Any, Bounds], str | None]
"""What is allowed if a value is not, else None."""


@dataclass(frozen=True)
class Tensor:
    """How one input travels.

    most  of a list (dims [-1]), the limit of its elements among the settings' `limits`; None: one
          value (dims [1])
    """

    name: str
    dtype: str
    most: str | None
    check: Check | None
    doc: str

    @property
    def many(self) -> bool:
        return self.most is not None

    @property
    def dims(self) -> list[int]:
        """Shape without the leading batch dimension."""
        return [-1] if self.many else [1]


# --- which values are allowed ------------------------------------------------------------------


def _bounded_text(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.prompt_bytes
    if value and len(value.encode()) <= most:
        return None
    return f"text of at least one character and at most {most} bytes (limits.prompt_bytes)"


def _only_one(value: int, _: Bounds) -> str | None:
    return None if value == 1 else "1, the only number served"


def _between(low: float, high: float | Callable[[Bounds], float]) -> Check:
    """Finite numbers from `low` to `high`; NaN is none."""

    def check(value: float, bounds: Bounds) -> str | None:
        most = high(bounds) if callable(high) else high
        if low <= value <= most and math.isfinite(value):
            return None
        return f"between {low} and {most}" if math.isfinite(most) else f"a number, {low} or more"

    return check


def _token_or_none(value: int, bounds: Bounds) -> str | None:
    known = -1 <= value < bounds.vocabulary
    return None if known else f"a token id, 0 to {bounds.vocabulary - 1}, or -1 for none"


def _short_words(words: tuple[str, ...], bounds: Bounds) -> str | None:
    most = bounds.limits.word_bytes
    if all(len(word.encode()) <= most for word in words):
        return None
    return f"words of at most {most} bytes each (limits.word_bytes)"


def _known_decoding(value: str, _: Bounds) -> str | None:
    return None if value in DECODINGS else f"one of {', '.join(DECODINGS)}"


def _token_ids(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if ids and min(ids) >= 0 and max(ids) < bounds.vocabulary:
        return None
    return f"one or more token ids, each 0 to {bounds.vocabulary - 1}"


def _tensor(
    dtype: str,
    doc: str,
    check: Check | None = None,
    *,
    default: Any = None,
    most: str | None = None,
) -> Any:
    return field(
        default=default, metadata={"dtype": dtype, "doc": doc, "check": check, "most": most}
    )


# --- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One request as `ensemble` and `preprocessing` receive it."""

    text_input: str | None = _tensor("BYTES", "The prompt.", _bounded_text)
    max_tokens: int | None = _tensor(
        "INT32",
        "How many new tokens at most; limits.default_max_tokens if absent.",
        _between(1, lambda bounds: bounds.limits.max_tokens),
    )
    stream: bool = _tensor("BOOL", "Send the text as it is generated.", default=False)
    temperature: float = _tensor(
        "FP32", "Sampling temperature; 0 is greedy.", _between(0, math.inf), default=0.0
    )
    top_k: int = _tensor(
        "INT32", "Sample from the k likeliest tokens; 0 is off.", _between(0, math.inf), default=0
    )
    top_p: float = _tensor(
        "FP32",
        "Sample from the likeliest tokens of mass p; 0 and 1 are off.",
        _between(0, 1),
        default=0.0,
    )
    repetition_penalty: float = _tensor(
        "FP32",
        "Divides positive scores of tokens seen; 1 is off.",
        _between(0.01, 100.0),
        default=1.0,
    )
    presence_penalty: float = _tensor(
        "FP32", "Subtracted once from scores of tokens seen.", _between(-100.0, 100.0), default=0.0
    )
    frequency_penalty: float = _tensor(
        "FP32", "Subtracted from scores for every occurrence.", _between(-100.0, 100.0), default=0.0
    )
    min_tokens: int = _tensor(
        "INT32",
        "end_id is not chosen before so many new tokens.",
        _between(0, lambda bounds: bounds.limits.max_tokens),
        default=0,
    )
    seed: int | None = _tensor("UINT64", "The same seed gives the same text; absent: a fresh one.")
    stop_words: tuple[str, ...] = _tensor(
        "BYTES",
        "The text ends before the first of these.",
        _short_words,
        default=(),
        most="stop_words",
    )
    bad_words: tuple[str, ...] = _tensor(
        "BYTES",
        "Token sequences of these are never completed.",
        _short_words,
        default=(),
        most="bad_words",
    )
    end_id: int | None = _tensor(
        "INT32", "The token that ends the text; -1: none; absent: the model's.", _token_or_none
    )
    pad_id: int | None = _tensor("INT32", "Accepted, without effect.", _token_or_none)
    return_log_probs: bool = _tensor("BOOL", "Report log-probabilities.", default=False)
    exclude_input_in_output: bool = _tensor(
        "BOOL", "False: a text that is not streamed begins with the prompt.", default=True
    )
    num_return_sequences: int = _tensor("INT32", "How many texts.", _only_one, default=1)
    beam_width: int = _tensor("INT32", "Beam width.", _only_one, default=1)
    return_num_input_tokens: bool = _tensor("BOOL", "Report the prompt's tokens.", default=False)
    return_num_output_tokens: bool = _tensor("BOOL", "Report the text's tokens.", default=False)
    return_perf_metrics: bool = _tensor("BOOL", "Report times and acceptance.", default=False)
    decoding: str | None = _tensor(
        "BYTES", f"{', '.join(DECODINGS)}; absent: speculation.decoding.", _known_decoding
    )


@dataclass(frozen=True, kw_only=True)
class TokenRequest(GenerateRequest):
    """One request as `card` receives it: the tokens, and the text for those who want it back."""

    input_ids: tuple[int, ...] = _tensor(
        "INT32",
        "The prompt's tokens.",
        _token_ids,
        default=(),
        most="prompt_tokens",
    )


Request = TypeVar("Request", bound=GenerateRequest)


def tensors(table: type[GenerateRequest]) -> tuple[Tensor, ...]:
    """The table as a list, in the order of its fields."""
    return tuple(Tensor(name=f.name, **f.metadata) for f in fields(table))


def parse(
    table: type[Request],
    arrays: Mapping[str, NDArray[Any]],
    bounds: Bounds,
    required: Iterable[str] = (),
) -> Request:
    """Read and check the tensors of one request, each [1, 1] or, for a list, [1, n].

    Raises `Refusal` naming the field, its value and what is allowed.
    """
    check_shapes(table, {name: array.shape for name, array in arrays.items()}, bounds.limits)
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name in required:
        if name not in arrays:
            raise missing(name, known[name].doc.rstrip(".").lower())
    values = {}
    for name, array in arrays.items():
        tensor = known[name]
        value = _read(tensor, array)
        if tensor.many:
            _check_count(tensor, len(value), bounds.limits)
        if tensor.check is not None and (allowed := tensor.check(value, bounds)) is not None:
            raise invalid(name, value, allowed)
        values[name] = value
    return table(**values)


def check_shapes(
    table: type[GenerateRequest], shapes: Mapping[str, Sequence[int]], limits: LimitSettings
) -> None:
    """Refuse tensors that are none of the table's, or hold more than they may.

    Numbers become Python objects one by one, while everybody else waits: so this comes first.
    (Words have become objects before: Triton's backend unpacks them when it makes the request.)
    """
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name, shape in shapes.items():
        if name not in known:
            raise invalid("input", name, f"one of {', '.join(known)}")
        count = math.prod(shape)
        if known[name].many:
            if count != 1:  # a single one may be the empty word that stands for none
                _check_count(known[name], count, limits)
        elif count != 1:
            raise _refused(name, f"has shape {list(shape)}; it must be one value, of shape [1, 1]")


def check_parameters(parameters: Iterable[str]) -> None:
    """Refuse request parameters that nobody understands; a misspelt input arrives as one."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith("triton_"):
            known = ", ".join(tensor.name for tensor in tensors(GenerateRequest))
            raise invalid("parameter", name, f"one of {', '.join(PARAMETERS)}; inputs are {known}")


def output_budget(request: GenerateRequest, prompt_tokens: int, limits: LimitSettings) -> int:
    """How many tokens the request may generate after a prompt of so many tokens.

    Raises `Refusal` when the prompt is too long or leaves less room than `max_tokens` asks for.
    """
    field_name = "input_ids" if isinstance(request, TokenRequest) else "text_input"
    if not 1 <= prompt_tokens <= limits.prompt_tokens:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"{field_name} is {prompt_tokens} tokens long; it must be 1 to {limits.prompt_tokens} "
            "(limits.prompt_tokens)",
        )
    room = limits.context_tokens - prompt_tokens
    if request.max_tokens is None:
        return min(limits.default_max_tokens, room)
    if request.max_tokens > room:
        raise invalid(
            "max_tokens",
            request.max_tokens,
            f"at most {room} after a prompt of {prompt_tokens} tokens "
            f"(limits.context_tokens is {limits.context_tokens})",
        )
    return request.max_tokens


def _check_count(tensor: Tensor, count: int, limits: LimitSettings) -> None:
    assert tensor.most is not None
    allowed: int = getattr(limits, tensor.most)
    if count > allowed:
        raise _refused(
            tensor.name,
            f"has {count} elements; it must have at most {allowed} (limits.{tensor.most})",
        )


def _refused(name: str, why: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{name} {why}", field=name)


def _read(tensor: Tensor, array: NDArray[Any]) -> Any:
    values = [_element(tensor, item) for item in array.reshape(-1).tolist()]
    if tensor.many:
        # Clients of TensorRT-LLM send [[""]] for "none".
        return tuple(value for value in values if value != "")
    return values[0]


def _element(tensor: Tensor, item: Any) -> Any:
    if tensor.dtype == "FP32":
        # The number that was meant: 0.8, not the 0.800000011920929 that 32 bits make of it.
        return float(str(np.float32(item)))
    if tensor.dtype != "BYTES":
        return item
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(tensor.name, item, f"valid UTF-8 ({error.reason} at {error.start})") from None
