"""What went wrong, as a status code and a sentence for people."""

from __future__ import annotations

import ipaddress
import os
import re

import grpc
from tritonclient.utils import InferenceServerException

CODES = frozenset(code.name for code in grpc.StatusCode)

_NAMED_CODE = re.compile(rf"\b({'|'.join(sorted(CODES - {'OK'}))}):\s*")

# Triton words its own refusals without a code; these phrases are stable across its versions.
_TRITON_PHRASES = (
    ("unknown model", "NOT_FOUND"),
    ("timeout expired", "DEADLINE_EXCEEDED"),
    ("exceeds maximum queue size", "UNAVAILABLE"),
    ("no available versions", "UNAVAILABLE"),
    ("is not ready", "UNAVAILABLE"),
    ("is not healthy", "UNAVAILABLE"),
    ("unexpected inference input", "INVALID_ARGUMENT"),
    ("unexpected shape for input", "INVALID_ARGUMENT"),
    ("inference input data-type", "INVALID_ARGUMENT"),
)

_NEVER_CONNECTED = re.compile(
    r"failed to connect|connection refused|resol(ution|ving)|handshake|http1\.x|tls|ssl",
    re.IGNORECASE,
)


_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables that gRPC reads, in this order."""

NO_STATUS = "Internal error from Core"
"""What gRPC for Python says of a call that ended, at its deadline or by the server, while the
request was sent: it reads no status then (https://github.com/grpc/grpc/issues/2685)."""
_ABOUT_OVER = 0.9
"""A call that ended after this share of its deadline, by our clock, counts as timed out."""


class CardError(Exception):
    """A request that could not be answered.

    `code` is the name of a gRPC status code (`INVALID_ARGUMENT`, `UNAVAILABLE`,
    `DEADLINE_EXCEEDED`, ...), `message` says what was wrong and what to do.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in CODES:
            raise ValueError(f"code is {code!r}; allowed are the gRPC status codes' names")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def invalid(message: str) -> CardError:
    """A value that the caller gave is wrong."""
    return CardError("INVALID_ARGUMENT", message)


def server_error(text: str, fallback: str = "UNKNOWN") -> CardError:
    """The error a server wrote.

    A code's name inside `text` decides, then Triton's own phrases, then `fallback`. What Triton
    wraps around a named code (which ensemble, which instance) is of no use to the caller and
    is dropped.
    """
    named = _NAMED_CODE.search(text)
    if named:
        return CardError(named[1], text[named.end() :].strip() or text)
    lowered = text.lower()
    for phrase, code in _TRITON_PHRASES:
        if phrase in lowered:
            return CardError(code, text)
    return CardError(fallback, text)


def call_error(
    error: grpc.RpcError | InferenceServerException,
    address: str,
    timeout_s: float | None,
    taken_s: float,
) -> CardError:
    """The error of a call to `address` that gRPC itself ended, `taken_s` after it began."""
    if isinstance(error, InferenceServerException):
        code = (error.status() or "StatusCode.UNKNOWN").rpartition(".")[2]
        details = error.message()
    else:
        code, details = error.code().name, error.details()
    return status_error(code, details or "", address, timeout_s, taken_s)


def status_error(
    code: str, details: str, address: str, timeout_s: float | None, taken_s: float
) -> CardError:
    """As `call_error`, from the status code's name and the details in words."""
    if code == "INTERNAL" and details == NO_STATUS:
        if timeout_s is None or taken_s < _ABOUT_OVER * timeout_s:
            return CardError(
                "UNAVAILABLE", f"{address} ended the call before it had the request; send it again"
            )
        code = "DEADLINE_EXCEEDED"
    if code == "UNAVAILABLE" and _NEVER_CONNECTED.search(details):
        return CardError(
            code,
            f"cannot reach {address}: {_last_cause(details)}. Check that the server is up, that "
            "host and port are right (gRPC, by default 8001, not the HTTP port), and whether the "
            f"server expects TLS.{_proxy_hint(address)}",
        )
    if code == "UNAVAILABLE" and not _NAMED_CODE.search(details):
        return CardError(code, f"lost the connection to {address}: {details or 'no details'}")
    if code == "DEADLINE_EXCEEDED" and not _NAMED_CODE.search(details):
        limit = "in time" if timeout_s is None else f"within {timeout_s:g} s"
        return CardError(code, f"{address} did not complete the answer {limit}; allow more time")
    return server_error(details or f"{address} ended the call with {code}", fallback=code)


def is_here(address: str) -> bool:
    """Whether the address is one of this machine's own, for itself alone."""
    host = address.rsplit("/", 1)[-1].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _proxy_hint(address: str) -> str:
    """gRPC itself does not say that it asked a proxy."""
    named = next((name for name in _PROXIES if os.environ.get(name)), None)
    if named is None or is_here(address):
        return ""
    return (
        f" {named} names a proxy, which gRPC asks for every host that "
        "no_grpc_proxy or no_proxy does not name."
    )


def _last_cause(details: str) -> str:
    """The innermost cause of a connection failure, without gRPC's own preamble."""
    cause = details.rpartition("last error:")[2].strip().rstrip(".")
    return cause.removeprefix("UNKNOWN: ")
