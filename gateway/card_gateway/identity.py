"""What names a request: its target, its identifier for client and logs, and its trace."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """What `NameRequest` gave it."""
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
