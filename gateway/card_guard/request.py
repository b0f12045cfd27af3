"""What a request to infer may not be, because Triton itself could not bear it."""

from __future__ import annotations

import math
from collections.abc import Collection

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

MOST_ELEMENTS = 1 << 20
"""Of one tensor. The service's own take far fewer; beyond 2^60 their bytes overflow."""

_CLASSIFICATION = "classification"
_SHARED_MEMORY = "shared_memory_"


class RequestError(ValueError):
    """A request that is not passed on; the message says why, `request_id` whose it is."""

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
        return f"model {request.model_name!r} is not served here; ask {' or '.join(sorted(models))}"
    for tensor in request.inputs:
        if any(size < 0 for size in tensor.shape) or math.prod(tensor.shape) > MOST_ELEMENTS:
            shape = list(tensor.shape)
            return f"input {tensor.name!r} has shape {shape}; at most {MOST_ELEMENTS} elements"
    for output in request.outputs:
        if _CLASSIFICATION in output.parameters:
            return f"output {output.name!r} cannot be classified; leave class_count out"
    for named in (*request.inputs, *request.outputs):
        if any(name.startswith(_SHARED_MEMORY) for name in named.parameters):
            return f"{named.name!r} is in shared memory; send and take tensors in the message"
    return None
