"""What the supervisor sees, for the outside.

`/live`     200 or 503 with JSON: the supervisor itself runs and watches
`/ready`    200 or 503 with JSON: a request now would be answered; a lost draft makes it degraded,
            not unready
`/metrics`  the same for Prometheus, with memory and open files of every process; it answers while
            the server is down, and the metrics of the server with it
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import socketserver
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from card.serving.supervision.states import EXPENDABLE, STUBS

log = logging.getLogger(__name__)

STATES = ("starting", "ready", "degraded", "unready", "draining")
STALLED_S = 10.0
"""A supervisor that has not looked around for longer does not watch any more."""
_MOST_CONNECTIONS = 64
"""More close the oldest: silent connections keep no probe out."""
_METRICS: dict[str, tuple[type[Gauge | Counter], str, str]] = {
    "card_service_ready": (Gauge, "", "Whether a request now would be answered."),
    "card_service_state": (Gauge, "state", "1 for the state the service is in."),
    "card_model_well": (Gauge, "model", "Whether a model's process runs and takes part."),
    "card_server_restarts": (Counter, "", "Times the whole server was restarted."),
    "card_guard_restarts": (Counter, "", "Times the guard in front of gRPC was started again."),
    "card_model_reloads": (Counter, "model", "Times a model was killed and loaded again."),
    "card_process_resident_memory_bytes": (Gauge, "process", "Resident memory of a process."),
    "card_process_open_files": (Gauge, "process", "File descriptors of a process."),
}
"""By name: kind, label (if any) and meaning."""


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """One model: `well`, or else what is known to be wrong. `loading` names the phase of its load
    and the `seconds` of that; None when all of the load is done."""

    state: str
    pid: int | None = None
    reloads: int = 0
    loading: Mapping[str, str | float] | None = None


@dataclass(frozen=True, slots=True)
class GuardHealth:
    """The guard: `well`, or else what is known to be wrong."""

    state: str
    pid: int


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """The whole service; `state` is one of `STATES`. `guard` is None where none stands in front."""

    state: str
    server_pid: int | None = None
    server_restarts: int = 0
    models: dict[str, ModelHealth] = field(default_factory=dict)
    guard: GuardHealth | None = None
    guard_restarts: int = 0

    @property
    def ready(self) -> bool:
        return self.state in ("ready", "degraded")


def state_of(answers: bool, models: Mapping[str, ModelHealth], guard: GuardHealth | None) -> str:
    """The state of a service that serves, by what is seen of its parts.

    answers  whether the server runs and says that the ensemble is ready
    """
    ill = [model for model, health in models.items() if health.state != "well"]
    reached = answers and (guard is None or guard.state == "well")
    if not reached or any(model not in EXPENDABLE for model in ill):
        return "unready"
    return "degraded" if ill else "ready"


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
        self._server = _Server((address, port), _handler(self))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    def publish(self, health: ServiceHealth) -> None:
        """Tell what the supervisor sees; also the proof that it looks."""
        self._health = health
        self._seen_s = self._clock()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, type and body for a path."""
        looked_s_ago = self._clock() - self._seen_s
        live, health = looked_s_ago <= STALLED_S, self._health
        ready = live and health.ready
        answers: dict[str, tuple[bool, dict[str, Any]]] = {
            "/live": (live, {"live": live, "looked_s_ago": round(looked_s_ago, 3)}),
            "/ready": (ready, {"ready": ready, **asdict(health)}),
        }
        if path == "/metrics":
            page = exposition(health, self._stubs, live=live)
            return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, page
        status = HTTPStatus.NOT_FOUND
        detail: dict[str, Any] = {"error": f"{path} is unknown; allowed: /live, /ready, /metrics"}
        if path in answers:
            well, detail = answers[path]
            status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", json.dumps(detail).encode() + b"\n"


def _handler(health: HealthServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, kind, body = health.answer(self.path.partition("?")[0])
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

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: deque[socket.socket] = deque()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

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


class _Figures(Collector):
    def __init__(self, values: Mapping[str, Mapping[str, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name, (kind, label, text) in _METRICS.items():
            family = kind(name, text, labels=[label] if label else [])
            for value, number in self._values[name].items():
                family.add_metric([value] if label else [], number)
            yield family


def exposition(health: ServiceHealth, stubs: Sequence[str], *, live: bool) -> bytes:
    """What Prometheus reads, made anew for every scrape, so nothing is counted twice or kept.

    stubs  models of the service that have a process
    live   whether the supervisor still looks around
    """
    models, held = health.models, dict(_held(health))
    registry = CollectorRegistry()
    registry.register(
        _Figures(
            {
                "card_service_ready": {"": live and health.ready},
                "card_service_state": {state: state == health.state for state in STATES},
                "card_model_well": {
                    model: model in models and models[model].state == "well" for model in stubs
                },
                "card_server_restarts": {"": health.server_restarts},
                "card_guard_restarts": {"": health.guard_restarts},
                "card_model_reloads": {name: seen.reloads for name, seen in models.items()},
                "card_process_resident_memory_bytes": {name: it[0] for name, it in held.items()},
                "card_process_open_files": {name: it[1] for name, it in held.items()},
            }
        )
    )
    return generate_latest(registry)


def _held(health: ServiceHealth) -> Iterator[tuple[str, tuple[int, int]]]:
    """Memory in bytes and files of every process that runs."""
    pids = {"supervisor": os.getpid(), "server": health.server_pid}
    pids |= {model: seen.pid for model, seen in health.models.items()}
    if health.guard is not None:
        pids["guard"] = health.guard.pid
    for name, pid in pids.items():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if pid is not None:
                process = psutil.Process(pid)
                yield name, (process.memory_info().rss, process.num_fds())
