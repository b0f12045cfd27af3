"""Input tensors: how a table describes one, which values it may have, and how a request is read.

The fields of a table (a dataclass) *are* the tensors: a field's default is the value of an absent
tensor, and its metadata holds dtype, shape and allowed values. `wire` has the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.constraints import GUIDE_TYPES
from card.serving.requests.refusal import Refusal, invalid, missing
from card.settings import LimitSettings

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


# --- allowed values ---------------------------------------------------------------------------
# Each check returns None for an allowed value, else a text that names the allowed values.


def bounded_text(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.prompt_bytes
    if value and len(value.encode()) <= most:
        return None
    return f"text of at least one character and at most {most} bytes (limits.prompt_bytes)"


def token_ids_or_none(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if all(0 <= token < bounds.vocabulary for token in ids):
        return None
    return f"token ids, each 0 to {bounds.vocabulary - 1}"


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
    if ids and min(ids) >= 0 and max(ids) < bounds.vocabulary:
        return None
    return f"one or more token ids, each 0 to {bounds.vocabulary - 1}"


# --- a request ----------------------------------------------------------------------------------


def parse(
    table: type[Request],
    arrays: Mapping[str, NDArray[Any]],
    bounds: Bounds,
    required: Mapping[str, str] = MappingProxyType({}),
) -> Request:
    """Read and check the tensors of one request, each [1, 1] or, for a list, [1, n].

    required  what to send, by the names of the tensors that must be there

    Raises `Refusal` naming the field, its value and the allowed values.
    """
    check_shapes(table, {name: array.shape for name, array in arrays.items()}, bounds.limits)
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name in required:
        if name not in arrays:
            raise missing(name, required[name])
    values = {}
    for name, array in arrays.items():
        tensor = known[name]
        if tensor.most == VOCABULARY and array.size != bounds.vocabulary:
            raise refused_tensor(
                name,
                f"has {array.size} elements; it must have one for each of {bounds.vocabulary} "
                "tokens",
            )
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
            raise refused_tensor(
                name, f"has shape {list(shape)}; it must be one value, of shape [1, 1]"
            )


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
