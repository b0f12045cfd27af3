"""The service under attack: its ports, its processes and its metric series."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from card.settings import Settings
from demonstration.gateway import GatewayProcess
from loading.service import running_service
from loading.supervised import open_local, ready_of, reserved_ports

HURRIED_S = 2.0
"""Seconds that an answer of the second gateway may take."""
_ANSWER_S = 120.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Place:
    """A service on a loopback address, by its ports.

    gateway  OpenAI's interface
    health   the supervisor
    metrics  Triton's metrics
    hurried  a gateway that ends an answer after `HURRIED_S`; None where there is none
    """

    host: str
    gateway: int
    health: int
    metrics: int
    hurried: int | None = None

    def processes(self) -> dict[str, psutil.Process]:
        """The gateway, the supervisor and every model's process. Raises `OSError`."""
        models = ready_of(self.host, self.health)["models"]
        pids = {name: model["pid"] for name, model in models.items() if model["pid"]}
        doors = {"gateway": _listener(self.gateway), "supervisor": _listener(self.health)}
        return {name: psutil.Process(pid) for name, pid in (doors | pids).items()}

    def series(self) -> int:
        """Metric series of the gateway and of the server. Raises `OSError`."""
        count = 0
        for port in (self.gateway, self.metrics):
            with open_local(f"http://{self.host}:{port}/metrics", _ANSWER_S) as page:
                count += sum(not line.startswith(b"#") for line in page)
        return count


def _listener(port: int) -> int:
    """The process that listens on a port. Raises `OSError` where none of this user does."""
    for found in psutil.net_connections("tcp"):
        if found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,) and found.pid:
            return int(found.pid)
    raise OSError(f"no process of this user listens on port {port}")


@contextmanager
def own_place(settings: Settings, settings_file: Path | None, log: Path) -> Iterator[Place]:
    """A service with two gateways on free ports, stopped at the end. Raises `ProcessEndedError`
    where one does not start."""
    with ExitStack() as exits:
        ports = exits.enter_context(reserved_ports(2))
        service = exits.enter_context(running_service(settings, settings_file, log))
        output = exits.enter_context(log.with_name("gateways.log").open("wb"))
        serving = service.settings.serving
        for port, options in zip(ports, ((), (f"--timeout-s={HURRIED_S:g}",)), strict=True):
            gateway = GatewayProcess(serving, settings.target.path, port, options)
            exits.callback(gateway.wait)
            exits.callback(gateway.stop)
            gateway.start(output)
            while not gateway.is_ready():
                time.sleep(_LOOK_S)
        yield Place(
            service.server.host, ports[0], serving.health_port, serving.metrics_port, ports[1]
        )
