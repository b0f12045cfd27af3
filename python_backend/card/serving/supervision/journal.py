"""One line per event on standard error, as `key=value` pairs that people and machines can read."""

from __future__ import annotations

import logging
import sys

_logger = logging.getLogger("card.supervisor")


def open_journal() -> None:
    """Send events to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%Y-%m-%dT%H:%M:%S")
    handler.setFormatter(formatter)
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


def note(event: str, **fields: object) -> None:
    """Something expected happened."""
    _logger.info(_line("info", event, fields))


def warn(event: str, **fields: object) -> None:
    """Something went wrong and is being taken care of."""
    _logger.warning(_line("warning", event, fields))


def _line(level: str, event: str, fields: dict[str, object]) -> str:
    pairs = [f"level={level}", f"event={event}"]
    for name, value in fields.items():
        text = str(value)
        plain = text and not any(character.isspace() or character == '"' for character in text)
        pairs.append(f"{name}={text}" if plain else f"{name}={_quoted(text)}")
    return " ".join(pairs)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
