"""What the supervisor does, one line per event (see `card.serving.log`)."""

from __future__ import annotations

from card.serving.log import EventLog

COMPONENT = "supervisor"
_log = EventLog(COMPONENT)
note, warn = _log.note, _log.warn
