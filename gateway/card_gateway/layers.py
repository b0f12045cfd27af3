"""Layers around the application: what names a request, and which requests are answered."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from card_gateway.errors import ApiError

HEADER = "x-request-id"
_IDENTIFIER = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE = re.compile(r"[\x20-\x7e]{1,512}")


class NameRequest:
    """Gives every request an identifier, the client's own if it sent one, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _read_absolute_target(scope)
        given = Headers(scope=scope).get(HEADER, "")
        identifier = given if _IDENTIFIER.fullmatch(given) else secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = identifier

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = identifier
            await send(message)

        await self._app(scope, receive, named)


def _read_absolute_target(scope: Scope) -> None:
    """Take path and host from a target that has both, as clients of a proxy send it."""
    if not re.match(rb"(?i)https?://", scope["raw_path"]):
        return
    try:
        target = urlsplit(scope["raw_path"].decode("ascii"))
    except ValueError:
        return  # no route has such a path
    scope["raw_path"] = target.path.encode() or b"/"
    scope["path"] = unquote(target.path) or "/"
    headers = [header for header in scope["headers"] if header[0] != b"host"]
    scope["headers"] = [(b"host", target.netloc.encode()), *headers]


def identifier_of(request: Request) -> str:
    """The identifier that `NameRequest` has given the request."""
    return str(request.state.request_id)


def traced(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that carry a trace on to Triton, as W3C's Trace Context writes them; none if the
    client sent none that can be read."""
    parent = headers.get("traceparent", "")
    if not _TRACE.fullmatch(parent):
        return {}
    state = headers.get("tracestate", "")
    found = {"traceparent": parent}
    return found | {"tracestate": state} if _TRACE_STATE.fullmatch(state) else found


LOOPBACK = ("localhost", "127.0.0.1", "::1")
PROBED = "/health"
"""Probes ask it without a key and by any name, and it is answered when all else is refused."""


class RequireKey:
    """Answers 401 unless the request carries `Authorization: Bearer <key>`, but at `open_paths`."""

    def __init__(self, app: ASGIApp, key: str, open_paths: Collection[str]) -> None:
        self._app = app
        self._expected = key.encode()
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            # In constant time: how long the comparison takes tells nothing about the key.
            is_right = hmac.compare_digest(given.encode("latin-1"), self._expected)
            if scheme.lower() != "bearer" or not is_right:
                message = "the API key is missing or wrong; send Authorization: Bearer <key>"
                error = ApiError(401, message, code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class RequireHost:
    """Answers 403 unless the header Host names one of `hosts` or this machine, but at `/health`.

    A browser sends the name under which a page was loaded. The owner of a page can have its name
    lead to this machine, but no page can change that header.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.strip("[]").lower() for host in (*hosts, *LOOPBACK)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != PROBED and "*" not in self._hosts:
            host = Headers(scope=scope).get("host", "")
            if _name_of(host) not in self._hosts:
                message = (
                    f"the host {host[:80]!r} is not served without an API key; start the gateway "
                    "with a key, or with --allow-host and this name"
                )
                error = ApiError(403, message, code="host_not_allowed")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class LimitRequests:
    """Answers 503 to a request with a complete body while `most` such requests are open.

    Requests without a body, such as probes, are not counted.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def admitted() -> Message:
            nonlocal is_open
            message = await receive()
            is_whole = message["type"] == "http.request" and not message.get("more_body")
            if is_whole and not is_open:
                if self._open >= self._most:
                    text = f"{self._most} requests are open, as many as are taken (--connections)"
                    raise ApiError(503, f"{text}; try again")
                is_open = True
                self._open += 1
            return message

        try:
            await self._app(scope, admitted, send)
        finally:
            self._open -= is_open


def _name_of(host: str) -> str | None:
    """The host name of a header Host, without the port. None: the header is not valid."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
