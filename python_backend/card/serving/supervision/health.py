"""Liveness and readiness for the outside, as two URLs that answer 200 or 503 with JSON.

`/live`   the supervisor itself runs and watches
`/ready`  a request now would be answered; a lost draft makes it degraded, not unready
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STALLED_S = 10.0
"""A supervisor that has not looked around for longer does not watch any more."""


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """One model: `well`, or else what is known to be wrong."""

    state: str
    pid: int | None = None
    reloads: int = 0


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """What was seen at the last look around.

    state    starting, ready, degraded, unready or draining
    """

    state: str
    server_pid: int | None = None
    server_restarts: int = 0
    models: dict[str, ModelHealth] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return self.state in ("ready", "degraded")


class HealthServer:
    """Serves what `publish` was last given."""

    def __init__(
        self, address: str, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Bind and start answering. Raises `OSError` when the port is taken."""
        self._clock = clock
        self._seen_s = clock()
        self._health = ServiceHealth("starting")
        self._server = _server_class(address)((address, port), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def publish(self, health: ServiceHealth) -> None:
        """Tell what the supervisor sees; also the proof that it looks."""
        self._health = health
        self._seen_s = self._clock()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        """Status and JSON for a path."""
        health, looked_s_ago = self._health, self._clock() - self._seen_s
        live = looked_s_ago <= STALLED_S
        if path == "/live":
            detail: dict[str, Any] = {"live": live, "looked_s_ago": round(looked_s_ago, 3)}
            return _status(live), detail
        if path == "/ready":
            ready = live and health.ready
            return _status(ready), {"ready": ready, **asdict(health)}
        return HTTPStatus.NOT_FOUND, {"error": f"{path} is unknown; allowed: /live, /ready"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                status, detail = answer(self.path.partition("?")[0])
                body = json.dumps(detail).encode() + b"\n"
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Probes come every second; they are not events."""

        return Handler


def _server_class(address: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True

        def server_bind(self) -> None:
            # HTTPServer would ask the resolver for this host's name, which may take seconds.
            socketserver.TCPServer.server_bind(self)

    return Server


def _status(well: bool) -> HTTPStatus:
    return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
