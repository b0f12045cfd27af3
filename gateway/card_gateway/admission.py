"""Who may ask, and how much at a time: two layers around the application."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from card_gateway.errors import ApiError


class RequireKey:
    """Answers 401 unless the request carries `Authorization: Bearer <key>`, but at `open_paths`."""

    def __init__(self, app: ASGIApp, key: str, open_paths: Collection[str]) -> None:
        self._app = app
        self._expected = key.encode()
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            # In constant time: how long it takes tells nothing about the key.
            is_right = hmac.compare_digest(given.encode("latin-1"), self._expected)
            if scheme.lower() != "bearer" or not is_right:
                message = "the API key is missing or wrong; send Authorization: Bearer <key>"
                error = ApiError(401, message, code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class CheckBody:
    """Answers 415 to a compressed body, which would be no JSON, and 413 to one of more than `most`
    bytes, however its length is announced."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            message = f"the body has Content-Encoding {encoding[:40]!r}; send it without any"
            error = ApiError(415, message, code="unsupported_media_type")
            await error.response()(scope, receive, send)
            return
        if announced.isdecimal() and int(announced) > self._most:
            await self._too_large().response()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most:
                raise self._too_large()
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is too large; at most {self._most} bytes are taken")
