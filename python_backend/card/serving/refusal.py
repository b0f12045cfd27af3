"""Errors for people: what was wrong, what is allowed, what to do."""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "INVALID_ARGUMENT",
    "PERMISSION_DENIED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "INTERNAL",
]

_LONGEST_VALUE = 80


class Refusal(Exception):
    """A request that gets an error instead of an answer.

    The text begins with the code's name and a colon, because a stream carries no status of its
    own: clients of one find the code in the message alone.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def invalid(field: str, value: object, allowed: str) -> Refusal:
    """`field` has a value that is not allowed."""
    return Refusal("INVALID_ARGUMENT", f"{field} is {_shown(value)}; it must be {allowed}")


def missing(field: str, wanted: str) -> Refusal:
    """`field` was not sent."""
    return Refusal("INVALID_ARGUMENT", f"{field} is missing; send {wanted}")


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 3]}..."
