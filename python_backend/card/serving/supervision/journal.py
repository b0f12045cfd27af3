"""What the supervisor does, one line per event (see `card.serving.log`)."""

from __future__ import annotations

from card.serving.log import EventLog, open_log
from card.settings import LogFormat

_COMPONENT = "supervisor"
_log = EventLog(_COMPONENT)


def open_journal(form: LogFormat) -> None:
    """Send events to standard error."""
    open_log(_COMPONENT, form)


def note(event: str, **fields: object) -> None:
    """Something expected happened."""
    _log.note(event, **fields)


def warn(event: str, **fields: object) -> None:
    """Something went wrong and is being taken care of."""
    _log.warn(event, **fields)
