"""The body of a request: read within bounds, then parsed and checked away from the event loop."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from card_gateway.errors import ApiError, from_validation, refused

READ_S = 30.0
"""Within which the whole body must arrive."""
SMALL_BYTES = 64 << 10
"""Requests up to this size do not wait behind larger ones."""

NO_OBJECT = "send a JSON object with the header Content-Type: application/json"
_JSON = re.compile(r"application/(?:[^;]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_MAY_OVERFLOW = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{300}")

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")

_Way = tuple[Any, ...]
"""Of a value in the body: the way to what holds it, and its name there. A path as text would repeat
the names of all that hold it."""


class Workers:
    """Two threads beside the event loop: one for small requests, one for large ones.

    One thread alone can compute beside the loop without holding it up for more than a few
    milliseconds: Python hands its lock over that often.
    """

    def __init__(self) -> None:
        self._small, self._large = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    async def run(self, size: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do the work of a request of `size` bytes."""
        pool = self._small if size <= SMALL_BYTES else self._large
        return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments))

    async def run_if_large(
        self, is_large: bool, work: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Do the work of an answer: at once, or with that of large requests."""
        if not is_large:
            return work(*arguments)
        return await self.run(SMALL_BYTES + 1, work, *arguments)

    def close(self) -> None:
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)


async def body_of(request: Request, most: int) -> bytes:
    """The body, of at most `most` bytes. Raises `ApiError` and `ClientDisconnect`."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        message = f"the body has Content-Encoding {encoding[:40]!r}; send it without any"
        raise ApiError(415, message, code="unsupported_media_type")
    if not _JSON.match(request.headers.get("content-type", "")):
        raise ApiError(400, NO_OBJECT)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise _too_large(most)
    try:
        return await asyncio.wait_for(_read(request, most), READ_S)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {READ_S:g} s"
        raise ApiError(408, message, headers={"Connection": "close"}) from None


async def _read(request: Request, most: int) -> bytes:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise _too_large(most)
    return bytes(read)


def parsed(data: bytes, kind: type[Body]) -> Body:
    """The body as `kind`. Raises `ApiError`."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        _check_texts_and_numbers(data)
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    if _MAY_OVERFLOW.search(data):
        _check_texts_and_numbers(data)
    if not isinstance(value, dict):
        raise ApiError(400, NO_OBJECT)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise from_validation(error) from error


def _check_texts_and_numbers(data: bytes) -> None:
    """Name what Python's own parser takes and JSON in UTF-8 cannot say. Raises `ApiError`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    left: list[tuple[_Way, Any]] = [((), value)]
    while left:
        way, one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            path = _path(way)
            raise refused(path, f"{path} is {one}; JSON has no such number")
        if isinstance(one, str) and not _is_unicode(one):
            path = _path(way)
            raise refused(
                path, f"{path} is not valid Unicode text: it has half of a surrogate pair"
            )
        if isinstance(one, dict):
            if not all(map(_is_unicode, one)):
                what = f"{_path(way)} holds" if way else "the body holds"
                raise ApiError(400, f"{what} the name of a field that is not valid Unicode text")
            left += [((way, name), it) for name, it in one.items()]
        elif isinstance(one, list):
            left += [((way, place), it) for place, it in enumerate(one)]


def _path(way: _Way) -> str:
    names: list[str] = []
    while way:
        way, name = way
        names.append(str(name))
    return ".".join(reversed(names))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_large(most: int) -> ApiError:
    message = f"the body is too large; at most {most} bytes are taken (--body-bytes)"
    return ApiError(413, message)
