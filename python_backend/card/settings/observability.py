"""What the service says of itself."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from card.settings.section import Section

LogFormat = Literal["text", "json"]


def _names_a_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise ValueError("it must name a host, and a port from 1 to 65535 if any")
    return url


CollectorUrl = Annotated[
    str,
    Field(
        pattern=r"^https?://[^\s,]+$",
        json_schema_extra={
            "form": "an address that begins with http:// or https://, without spaces and commas",
            "examples": ["http://127.0.0.1:4318/v1/traces"],
        },
    ),
    AfterValidator(_names_a_host),
]


class ObservabilitySettings(Section):
    """Logs and traces; metrics are always on."""

    log_format: LogFormat = "text"
    """Lines of the supervisor and the models: `key=value` pairs, or one JSON object each."""
    log_requests: bool = True
    """One line per request: its id, how it ended, tokens and times."""
    log_prompts: bool = False
    """Put prompts, and the refused values of other inputs, into the log too."""
    trace_url: CollectorUrl | None = None
    """OTLP/HTTP collector of OpenTelemetry traces (http://HOST:4318/v1/traces); absent: none."""
    trace_rate: Annotated[int, Field(ge=1)] = 100
    """One request in so many is traced, besides those whose client sent a `traceparent`."""
