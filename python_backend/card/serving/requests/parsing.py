"""Turns tensors into a request, or refuses them and names field, value and allowed values."""

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
"""Known request parameters; Triton's own begin with `triton_`."""

INPUTS = tuple(tensor.name for tensor in tensors(GenerateRequest))

Request = TypeVar("Request", bound=GenerateRequest)


def parse(
    table: type[Request],
    arrays: Mapping[str, NDArray[Any]],
    bounds: Bounds,
    required: Iterable[str] = (),
) -> Request:
    """Read and check the tensors of one request, each [1, 1] or, for a list, [1, n].

    Raises `Refusal` naming the field, its value and the allowed values.
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
            raise _refused(name, f"has shape {list(shape)}; it must be one value, of shape [1, 1]")


def check_parameters(parameters: Iterable[str], inputs: Iterable[str] = INPUTS) -> None:
    """Refuse unknown request parameters. A misspelt name of `inputs` arrives as a parameter."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith("triton_"):
            known = f"one of {', '.join(PARAMETERS)}; inputs are {', '.join(inputs)}"
            raise invalid("parameter", name, known)


def one_prompt(names: Container[str]) -> tuple[str, ...]:
    """The tensor that must hold the prompt. Raises `Refusal` if the request has two prompts."""
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
