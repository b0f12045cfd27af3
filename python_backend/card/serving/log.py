"""One line per event on standard error, for people (`key=value`) or for machines (JSON).

Of what a client sent only the request id is among the fields, shortened and with everything escaped
that a terminal could take for a command; `observability.log_prompts` alone adds more. Triton's own
lines stand between ours and keep their own form.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from card.serving.requests.refusal import Refusal
from card.settings import LogFormat, ObservabilitySettings

_ROOT = "card"

_LONGEST_ID = 128
"""Characters of a request id that are logged."""


def open_log(component: str, form: LogFormat) -> EventLog:
    """Send this process's events, and whatever the package logs, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(component, form))
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    return EventLog(component)


class EventLog:
    """Notes events with their fields. Fields that are None are left out."""

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{component}")

    def note(self, event: str, **fields: object) -> None:
        """Something expected happened."""
        self._logger.info(event, extra={"fields": fields})

    def warn(self, event: str, **fields: object) -> None:
        """Something went wrong and is being taken care of."""
        self._logger.warning(event, extra={"fields": fields})


class RequestLog:
    """One line per request, if it is wanted, and with the client's own words only if asked for."""

    def __init__(self, component: str, settings: ObservabilitySettings) -> None:
        """Open this process's log as well."""
        self._log = open_log(component, settings.log_format)
        self._wanted = settings.log_requests
        self._in_full = settings.log_prompts

    def refused(self, refusal: Refusal, request_id: str, prompt: str | None = None) -> None:
        """A request got an error instead of a slot. The error's text may quote the request."""
        if not self._wanted:
            return
        self._log.note(
            "refused",
            request_id=_shortened(request_id),
            code=refusal.code,
            reason=refusal.reason,
            field=refusal.field,
            message=str(refusal) if self._in_full else None,
            prompt=prompt if self._in_full else None,
        )

    def answered(self, request_id: str, prompt: str | None, **fields: object) -> None:
        """A request that had a slot ended."""
        if self._wanted:
            shown = prompt if self._in_full else None
            shortened = _shortened(request_id)
            self._log.note("answered", request_id=shortened, **fields, prompt=shown)


class _Lines(logging.Formatter):
    """A record's fields in their order, as pairs or as JSON."""

    def __init__(self, component: str, form: LogFormat) -> None:
        super().__init__()
        self._component = component
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        fields = self._fields(record)
        if self._form == "json":
            return _json({"time": _time(record)} | fields)
        return " ".join((_time(record), *(f"{name}={_value(it)}" for name, it in fields.items())))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields: dict[str, Any] = {"level": record.levelname.lower(), "component": self._component}
        given = getattr(record, "fields", None)
        if given is None:  # logged by a module that knows nothing of events
            fields |= {"event": "message", "logger": record.name, "message": record.getMessage()}
        else:
            fields |= {"event": record.msg}
            fields |= {name: value for name, value in given.items() if value is not None}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return fields


def _time(record: logging.LogRecord) -> str:
    """UTC, to the millisecond."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(character in ' "\\=' for character in text):
        return text
    return _json(text)


def _json(value: object) -> str:
    """In readable letters, unless some of them are no letters but commands to a terminal."""
    readable = json.dumps(value, ensure_ascii=False, default=str)
    return readable if readable.isprintable() else json.dumps(value, default=str)


def _shortened(request_id: str) -> str:
    if len(request_id) <= _LONGEST_ID:
        return request_id
    return f"{request_id[:_LONGEST_ID]}... ({len(request_id)} characters)"
