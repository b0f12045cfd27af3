"""What the supervisor sees, for the outside.

`/live`     200 or 503 with JSON: the supervisor itself runs and watches
`/ready`    200 or 503 with JSON: a request now would be answered; a lost draft makes it degraded,
            not unready
`/metrics`  the same for Prometheus, with memory and open files of every process; it answers while
            the server, whose own metrics vanish with it, is down
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from card.serving.supervision.figures import exposition
from card.serving.supervision.policy import STUBS
from card.serving.supervision.sighting import ServiceHealth

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64
"""More close the oldest: whoever opens many and says nothing keeps no probe out."""
STALLED_S = 10.0
"""A supervisor that has not looked around for longer does not watch any more."""


class HealthServer:
    """Serves what `publish` was last given."""

    def __init__(
        self,
        address: str,
        port: int,
        clock: Callable[[], float] = time.monotonic,
        stubs: Sequence[str] = STUBS,
    ) -> None:
        """Bind and start answering. Raises `OSError` when the port is taken.

        stubs  models of the service that have a process
        """
        self._stubs = stubs
        self._clock = clock
        self._seen_s = clock()
        self._health = ServiceHealth("starting")
        self._server = _Server((address, port), self._handler())
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

    def figures(self) -> bytes:
        """The text of `/metrics`."""
        live = self._clock() - self._seen_s <= STALLED_S
        return exposition(self._health, self._stubs, live=live)

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
        return HTTPStatus.NOT_FOUND, {
            "error": f"{path} is unknown; allowed: /live, /ready, /metrics"
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer, figures = self.answer, self.figures

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._send(HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, figures())
                    return
                status, detail = answer(path)
                self._send(status, "application/json", json.dumps(detail).encode() + b"\n")

            def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Probes come every second; they are not events."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, *args: Any) -> None:
        self._connections: deque[socket.socket] = deque()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        if len(self._connections) > _MOST_CONNECTIONS:
            with contextlib.suppress(OSError):  # it has ended just now
                self._connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # the client left
            log.exception("a request of the health port failed")

    def server_bind(self) -> None:
        # HTTPServer would ask the resolver for this host's name, which may take seconds.
        socketserver.TCPServer.server_bind(self)


def _status(well: bool) -> HTTPStatus:
    return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
