"""A tiny OpenTelemetry collector: takes OTLP/HTTP with JSON and keeps the spans."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Span = dict[str, Any]


@dataclass
class Collector:
    """Where it listens, and what it was sent."""

    url: str
    resources: list[dict[str, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def take(self, message: dict[str, Any]) -> None:
        for part in message["resourceSpans"]:
            self.resources.append(attributes(part["resource"]))
            for scope in part["scopeSpans"]:
                self.spans += scope["spans"]


def attributes(holder: dict[str, Any]) -> dict[str, str]:
    """The attributes of a span or a resource."""
    return {
        pair["key"]: str(next(iter(pair["value"].values())))
        for pair in holder.get("attributes", ())
    }


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    """Listens on a free port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
