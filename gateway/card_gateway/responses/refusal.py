"""Errors of the chat that a request stands for, under this route's names of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from card_client import CardError
from card_gateway.errors import ApiError, from_triton

_NAMES = {
    "logprobs": "include",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}


@contextmanager
def fields_renamed(request: Request) -> Iterator[None]:
    """Raises an `ApiError` in place of one that names a field of chats, or of a `CardError`."""
    try:
        yield
    except CardError as error:
        guided_by = getattr(request.state, "guided_by", None)
        raise _renamed(from_triton(error, guided_by)) from error
    except ApiError as error:
        raise _renamed(error) from error


def _renamed(error: ApiError) -> ApiError:
    field, dot, inside = (error.param or "").partition(".")
    if field not in _NAMES:
        return error
    # Places of messages are not those of items: instructions come first, calls are joined.
    param = _NAMES[field] + (f"{dot}{inside}" if field != "messages" else "")
    message = error.message.replace(f"{field}{dot}{inside}", param, 1)
    return ApiError(error.status_code, message, param=param, code=error.code)
