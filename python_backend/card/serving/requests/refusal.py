"""Errors for people: what was wrong, what is allowed, what to do."""

from __future__ import annotations

from typing import Literal, cast, get_args

from card.cache import Finish

Code = Literal[
    "INVALID_ARGUMENT",
    "PERMISSION_DENIED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "INTERNAL",
]
CODES: tuple[str, ...] = get_args(Code)

Reason = Literal[
    "invalid_argument",
    "permission_denied",
    "queue_full",
    "queue_timeout",
    "unavailable",
    "draining",
    "deadline_exceeded",
    "cancelled",
    "internal",
]
"""Error codes; different codes need different actions of an operator."""
REASONS: tuple[str, ...] = get_args(Reason)

GUIDE_FAILURES = {
    Finish.GUIDE_FAILED: "at some place it allows nothing; let every beginning of a text go on",
    Finish.GUIDE_ITEMS: (
        "one step takes more than the allowed number of parser items; make the grammar less "
        "ambiguous, or name fewer optional fields"
    ),
    Finish.GUIDE_FUEL: (
        "one step takes more than the allowed lexer fuel; make its regular expressions simpler or "
        "fewer"
    ),
    Finish.GUIDE_STATES: (
        "the text takes more than the allowed number of lexer states; use smaller counts in its "
        "regular expressions, or ask for fewer tokens"
    ),
}
"""Why a guide ended its text, and what to do, by the finish of the slot."""

_LONGEST_VALUE = 80


class Refusal(Exception):
    """A request is refused; its client gets this error.

    The text begins with the code's name and a colon, because a stream has no status of its own:
    streaming clients find the code only in the message. Metrics count `reason`. Logs name `field`,
    the wrong field, because they must not hold values that clients sent.
    """

    def __init__(
        self, code: Code, message: str, *, reason: Reason | None = None, field: str | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code: Code = code
        self.message = message
        self.reason: str = reason or code.lower()
        self.field = field


class UndeliverableError(RuntimeError):
    """Triton did not take a response; the message says why."""


def invalid(field: str, value: object, allowed: str) -> Refusal:
    """The error of a field with a value that is not allowed."""
    message = f"{field} is {_shown(value)}; it must be {allowed}"
    return Refusal("INVALID_ARGUMENT", message, field=field)


def missing(field: str, wanted: str) -> Refusal:
    """The error of a request without `field`."""
    return Refusal("INVALID_ARGUMENT", f"{field} is missing; send {wanted}", field=field)


def passed_on(text: str) -> Refusal:
    """The refusal of another model, from its text; the message begins with the field."""
    code, _, message = text.partition(": ")
    if code not in CODES:
        return Refusal("INTERNAL", text)
    return Refusal(cast(Code, code), message, field=message.split(" ", 1)[0])


def queue_full(slots: int, waiting: int, limit: int) -> Refusal:
    """The error of a request without a free slot or a free place in the queue."""
    return Refusal(
        "UNAVAILABLE",
        f"all {slots} slots are in use and {waiting} requests wait "
        f"(limits.queued_requests is {limit}); try again later",
        reason="queue_full",
    )


def guide_failed(finish: Finish) -> Refusal:
    """The error of a text that its guide ended with one of `GUIDE_FAILURES`."""
    field, why = "guided_decoding_guide", GUIDE_FAILURES[finish]
    what = f"{field} cannot be followed to the end of this text (guide_failed): {why}"
    return Refusal("INVALID_ARGUMENT", what, field=field)


def _shown(value: object) -> str:
    if isinstance(value, (str, bytes)):
        value = value[:_LONGEST_VALUE]  # cut before `repr`, which may be four times as long
    text = repr(list(value) if isinstance(value, tuple) else value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 3]}..."
