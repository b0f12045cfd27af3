"""Which requests are answered: layers around the application."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from card_gateway.errors import ApiError

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
    """Of a header Host without its port; None: it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
