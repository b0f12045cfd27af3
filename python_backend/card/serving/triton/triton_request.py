"""Wraps the needed part of Triton's requests and responses."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from hmac import compare_digest
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from card.serving.requests.delta import Delta
from card.serving.requests.refusal import Refusal, UndeliverableError, invalid
from card.serving.requests.wire import INPUTS, GenerateRequest, check_parameters, check_shapes
from card.settings import LimitSettings

log = logging.getLogger(__name__)

_TRITON_CODES = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "PERMISSION_DENIED": "UNSUPPORTED",
    "UNAVAILABLE": "UNAVAILABLE",
    # Triton has no code for it; UNAVAILABLE is the nearest.
    "DEADLINE_EXCEEDED": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
}
"""Attributes of `TritonError`, by name, because the stub adds that class after it imported the
model."""

_LONGEST_TIMEOUT_US = (1 << 63) - 1
_PRIORITY = "an integer, 0 or more, which changes nothing here"
_TIMEOUT = "a whole number of microseconds, 1 or more"


def input_arrays(request: Any) -> dict[str, NDArray[Any]]:
    """The request's tensors by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def checked_arrays(
    request: Any, table: type[GenerateRequest], limits: LimitSettings
) -> dict[str, NDArray[Any]]:
    """The tensors of a generate request by name; their sizes are checked before they are read.

    Raises `Refusal`.
    """
    check_shapes(table, {tensor.name(): tensor.shape() for tensor in request.inputs()}, limits)
    return input_arrays(request)


def deadline_ns(
    request: Any, without_effect: Collection[str] = (), inputs: Collection[str] = INPUTS
) -> int | None:
    """The request's deadline in ns on the monotonic clock; None if it has none.

    Triton makes gRPC's `timeout` a property of the request, and leaves the `timeout` of HTTP
    `generate` a parameter; both are microseconds. Raises `Refusal` for an invalid timeout, and for
    unknown parameters other than those `without_effect`.
    """
    parameters = _parameters(request)
    check_parameters((name for name in parameters if name not in without_effect), inputs)
    _natural(parameters, "priority", _PRIORITY)
    wanted = _natural(parameters, "timeout", _TIMEOUT)
    timeout_us = wanted or request.timeout()
    if timeout_us > _LONGEST_TIMEOUT_US:  # gRPC's front end makes a negative one huge
        raise invalid("timeout", wanted or timeout_us - (1 << 64), _TIMEOUT)
    return time.monotonic_ns() + timeout_us * 1000 if timeout_us else None


def _parameters(request: Any) -> Mapping[str, object]:
    """The request's parameters. Raises `Refusal`."""
    try:
        parameters: dict[str, object] = json.loads(request.parameters() or "{}")
    except UnicodeDecodeError as error:  # Triton's HTTP front end accepts any bytes as a string
        raise Refusal(
            "INVALID_ARGUMENT",
            "a parameter, or the request's id, holds bytes that are no UTF-8; send text",
            field="parameters",
        ) from error
    return parameters


def _natural(parameters: Mapping[str, object], name: str, allowed: str) -> int:
    """The parameter; 0 if it is absent. Raises `Refusal` unless it is an integer, 0 or more."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid(name, value, allowed)
    return value


def request_id(request: Any) -> str:
    """The client's id of the request; empty if it has none, or one that is not UTF-8."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def triton_error(refusal: Refusal) -> Any:
    """The refusal as an error of Triton."""
    return pb_utils.TritonError(
        str(refusal), getattr(pb_utils.TritonError, _TRITON_CODES[refusal.code])
    )


def refused(refusal: Refusal) -> Any:
    """A response that is an error."""
    return pb_utils.InferenceResponse(error=triton_error(refusal))


def response(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """A response with these tensors."""
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, array) for name, array in arrays.items()]
    )


TOKEN = "triton_card_token"
"""Parameter by which a model of this server shows `card` that it asks through BLS."""


def came_through_bls(request: Any, token: str) -> bool:
    """Whether a model of this server sent the request: it knows the pool's `token`. Raises
    `Refusal`."""
    given = _parameters(request).get(TOKEN)
    return isinstance(given, str) and compare_digest(given.encode(errors="replace"), token.encode())


class TritonClient:
    """The client of a request to `card`; responses go through the request's sender.

    through_bls  the client is a model of this server
    """

    through_bls = False

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()

    def send(self, delta: Delta, *, last: bool) -> None:
        self._reply(response(delta.pack()), last=last)

    def fail(self, refusal: Refusal) -> None:
        """Send the error, and the end with it: when an end comes alone, Triton's gRPC front end now
        and then frees the stream while another thread uses it, and the server dies (seen once in
        400 to 2,000 errors on busy cores). BLS drops an error in the middle of a stream and would
        wait forever for an end that came with it, so there the end is a message of its own."""
        try:
            self._reply(refused(refusal), last=not self.through_bls)
            if self.through_bls:
                self._reply(None, last=True)
        except UndeliverableError as error:
            log.error("an error could not be sent: %s", error)

    def is_gone(self) -> bool:
        return bool(self._sender.is_cancelled())

    def _reply(self, message: Any, *, last: bool) -> None:
        """Send `message`; None sends only the end. Raises `UndeliverableError`."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
        try:
            self._sender.send(*(() if message is None else (message,)), flags=flags)
        except pb_utils.TritonModelException as error:  # for example full shared memory
            raise UndeliverableError(str(error)) from error
