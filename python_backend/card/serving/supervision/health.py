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

from card.serving.supervision.policy import EXPENDABLE, STUBS

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64
"""More close the oldest: whoever opens many and says nothing keeps no probe out."""
STALLED_S = 10.0
"""A supervisor that has not looked around for longer does not watch any more."""
STATES = ("starting", "ready", "degraded", "unready", "draining")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The phase that the load of a model is in, and for how long."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """One model: `well`, or else what is known to be wrong. `loading` is None when its load is
    done, of which a part may go on while it serves."""

    state: str
    pid: int | None = None
    reloads: int = 0
    loading: LoadProgress | None = None


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
    """The state of a service between its start and its end, by what is seen of its parts.

    answers  whether the server runs and says that the ensemble is ready
    """
    lame = [model for model, health in models.items() if health.state != "well"]
    reached = answers and (guard is None or guard.state == "well")
    if not reached or any(model not in EXPENDABLE for model in lame):
        return "unready"
    return "degraded" if lame else "ready"


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


def exposition(health: ServiceHealth, stubs: Sequence[str], *, live: bool) -> bytes:
    """What Prometheus reads: made anew each time, so nothing is counted twice or kept.

    stubs  models of the service that have a process
    live   whether the supervisor still looks around
    """
    registry = CollectorRegistry()
    registry.register(_Figures(health, stubs, live))
    return generate_latest(registry)


class _Figures(Collector):
    """States, recoveries, and what each process holds."""

    def __init__(self, health: ServiceHealth, stubs: Sequence[str], live: bool) -> None:
        self._health = health
        self._stubs = stubs
        self._live = live

    def collect(self) -> Iterator[Metric]:
        health = self._health
        ready = self._live and health.ready
        yield _figure(
            Gauge, "card_service_ready", "Whether a request now would be answered.", ready
        )
        told = "1 for the state the service is in."
        states = {state: state == health.state for state in STATES}
        yield _figure(Gauge, "card_service_state", told, state=states)
        told = "Whether a model's process runs and takes part."
        well = {name: seen.state == "well" for name, seen in health.models.items()}
        well = {model: well.get(model, False) for model in self._stubs}
        yield _figure(Gauge, "card_model_well", told, model=well)
        told = "Times the whole server was restarted."
        yield _figure(Counter, "card_server_restarts", told, health.server_restarts)
        told = "Times the guard in front of gRPC was started again."
        yield _figure(Counter, "card_guard_restarts", told, health.guard_restarts)
        told = "Times a model was killed and loaded again."
        reloads = {name: seen.reloads for name, seen in health.models.items()}
        yield _figure(Counter, "card_model_reloads", told, model=reloads)
        held = dict(self._held())
        resident = {name: memory for name, (memory, _) in held.items()}
        told = "Resident memory of a process."
        yield _figure(Gauge, "card_process_resident_memory_bytes", told, process=resident)
        files = {name: count for name, (_, count) in held.items()}
        told = "File descriptors of a process."
        yield _figure(Gauge, "card_process_open_files", told, process=files)

    def _held(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Memory and files of every process that runs."""
        pids = {"supervisor": os.getpid(), "server": self._health.server_pid}
        pids |= {model: seen.pid for model, seen in self._health.models.items()}
        if self._health.guard is not None:
            pids["guard"] = self._health.guard.pid
        for name, pid in pids.items():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if pid is not None:
                    process = psutil.Process(pid)
                    yield name, (process.memory_info().rss, process.num_fds())


def _figure(
    kind: type[Gauge | Counter],
    name: str,
    text: str,
    value: float | None = None,
    **labelled: Mapping[str, float],
) -> Metric:
    """A metric with one value, or with one for each value of its label."""
    family = kind(name, text, value, labels=[*labelled] or None)
    for values in labelled.values():
        for label, number in values.items():
            family.add_metric([label], number)
    return family
