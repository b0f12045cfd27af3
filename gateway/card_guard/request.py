"""Refuses inference requests that would crash Triton."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

MOST_ELEMENTS = 1 << 20
"""Most elements of one tensor. The service needs far fewer; beyond 2^60 their bytes overflow."""

MOST_PARTS = 64
"""Most inputs, outputs, and parameters of each in a request. Checking millions would delay all
other calls."""

_MOST_DIMENSIONS = 8
_LONGEST_SHOWN = 80

_CLASSIFICATION = "classification"
_SHARED_MEMORY = "shared_memory_"


class RequestError(ValueError):
    """A request is refused; the message says why, `request_id` is its id."""

    def __init__(self, problem: str, request_id: str = "") -> None:
        super().__init__(f"INVALID_ARGUMENT: {problem}")
        self.request_id = request_id


def check_request(message: bytes, models: Collection[str]) -> None:
    """Raises `RequestError` if Triton must not see this ModelInferRequest.

    models  those that clients may ask
    """
    try:
        request = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        raise RequestError("this is no ModelInferRequest") from None
    if problem := _problem_of(request, models):
        raise RequestError(problem, request.id)


def _problem_of(request: service_pb2.ModelInferRequest, models: Collection[str]) -> str | None:
    if request.model_name not in models:
        allowed = ", ".join(sorted(models))
        return f"model {_shown(request.model_name)} is not served here; ask one of {allowed}"
    if problem := _excess(request):
        return problem
    for tensor in request.inputs:
        if not _is_bounded(tensor.shape):
            shape = list(tensor.shape[:_MOST_DIMENSIONS])
            return (
                f"input {_shown(tensor.name)} has shape {shape}; at most {_MOST_DIMENSIONS} "
                f"dimensions and {MOST_ELEMENTS} elements are taken"
            )
    for output in request.outputs:
        if _CLASSIFICATION in output.parameters:
            return f"output {_shown(output.name)} cannot be classified; leave class_count out"
    for named in (*request.inputs, *request.outputs):
        if any(name.startswith(_SHARED_MEMORY) for name in named.parameters):
            return f"{_shown(named.name)} is in shared memory; send and take tensors in the message"
    return None


def _excess(request: service_pb2.ModelInferRequest) -> str | None:
    """Say which part of the request is too large. None: no part is."""
    parts = {
        "inputs": request.inputs,
        "outputs": request.outputs,
        "raw input contents": request.raw_input_contents,
        "parameters": request.parameters,
    }
    for what, given in parts.items():
        if len(given) > MOST_PARTS:
            return f"{len(given)} {what}; at most {MOST_PARTS} are taken"
    for tensor in (*request.inputs, *request.outputs):
        if len(tensor.parameters) > MOST_PARTS:
            return (
                f"{_shown(tensor.name)} has {len(tensor.parameters)} parameters; "
                f"at most {MOST_PARTS} are taken"
            )
    return None


def _is_bounded(shape: Sequence[int]) -> bool:
    """Whether neither all dimensions together nor any of them hold too much."""
    if len(shape) > _MOST_DIMENSIONS:
        return False
    elements = 1
    for size in shape:
        if not 0 <= size <= MOST_ELEMENTS:
            return False
        elements *= max(size, 1)
    return elements <= MOST_ELEMENTS


def _shown(name: str) -> str:
    """A name from a request, cut to fit into an error."""
    return repr(name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}...")
