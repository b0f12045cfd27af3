"""Tensors become a request, or are refused: the field, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.serving.requests.allowed import Bounds
from card.serving.requests.refusal import Refusal, invalid, missing
from card.serving.requests.wire import VOCABULARY, GenerateRequest, Tensor, tensors
from card.settings import LimitSettings

PARAMETERS = ("id", "priority", "timeout")
"""Request parameters that are understood; Triton's own begin with `triton_`."""

INPUTS = tuple(tensor.name for tensor in tensors(GenerateRequest))

Request = TypeVar("Request", bound=GenerateRequest)


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
        if tensor.most == VOCABULARY and array.size != bounds.vocabulary:
            raise _refused(
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
            # A single one may be the empty word that stands for none. A list for the vocabulary
            # is checked by whoever knows how large that is.
            if count != 1 and known[name].most != VOCABULARY:
                _check_count(known[name], count, limits)
        elif count != 1:
            raise _refused(name, f"has shape {list(shape)}; it must be one value, of shape [1, 1]")


def check_parameters(parameters: Iterable[str], inputs: Iterable[str] = INPUTS) -> None:
    """Refuse request parameters that nobody understands; a misspelt one of `inputs` arrives as
    one."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith("triton_"):
            known = f"one of {', '.join(PARAMETERS)}; inputs are {', '.join(inputs)}"
            raise invalid("parameter", name, known)


def one_prompt(names: Container[str]) -> tuple[str, ...]:
    """Which tensor must be there for a prompt. Raises `Refusal` if it comes in two ways."""
    if "input_ids" not in names:
        return ("text_input",)
    if "text_input" in names:
        raise _refused("input_ids", "and text_input are both there; send one of them")
    return ("input_ids",)


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
