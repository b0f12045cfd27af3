"""A service of one's own for a long run, and what it tells about itself."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from card.settings import Settings
from loading.supervised import SUPERVISOR, SupervisedServer, open_local, reserved_serving

_ANSWER_S = 10.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class Service:
    """A service on this machine, under the supervisor of `server`."""

    settings: Settings
    server: SupervisedServer

    @property
    def grpc(self) -> str:
        return f"{self.server.host}:{self.settings.serving.grpc_port}"

    @property
    def http(self) -> str:
        return f"http://{self.server.host}:{self.settings.serving.http_port}"

    @property
    def health(self) -> dict[str, Any]:
        """What the supervisor says under /ready, ready or not. Raises `OSError`."""
        url = f"http://{self.server.host}:{self.settings.serving.health_port}/ready"
        try:
            with open_local(url, _ANSWER_S) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as answer:
            return dict(json.load(answer))

    def processes(self) -> dict[str, int]:
        """Process ids by name: the supervisor, the server, the models with a process and
        the guard, if there is one."""
        health = self.health
        guard = {"guard": int(health["guard"]["pid"])} if health["guard"] else {}
        models = {name: int(model["pid"] or 0) for name, model in health["models"].items()}
        return {
            "supervisor": self.server.process.pid,
            "tritonserver": health["server_pid"],
            **models,
            **guard,
        }

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels. Raises `OSError`."""
        url = f"http://{self.server.host}:{self.settings.serving.metrics_port}/metrics"
        with open_local(url, _ANSWER_S) as answer:
            page = answer.read().decode()
        # Its lines alone: to parse all of them again and again would keep a core busy.
        lines = (line for line in page.splitlines() if line.startswith(name))
        return sum(
            sample.value
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def busy(self) -> tuple[float, float]:
        """Slots in use and requests in the queue."""
        return self.metric("card_slots_in_use"), self.metric("card_queued_requests")


@contextlib.contextmanager
def starting_service(
    settings: Settings,
    settings_file: Path | None,
    log: Path,
    variables: Mapping[str, str] | None = None,
    command: Sequence[str | Path] = SUPERVISOR,
) -> Iterator[Service]:
    """Start a service on free ports; stop it at the end. `variables` are added to its
    environment."""
    with reserved_serving(settings.serving.address) as ports, log.open("wb") as output:
        serving = settings.serving.model_copy(update=ports)
        server = SupervisedServer(
            serving,
            settings_file=settings_file,
            variables={"CARD_SERVING__DRAIN_S": "1", **(variables or {})},
            output=output,
            command=command,
        )
        try:
            yield Service(settings.model_copy(update={"serving": serving}), server)
        finally:
            server.stop()
            server.process.wait()


@contextlib.contextmanager
def running_service(
    settings: Settings,
    settings_file: Path | None,
    log: Path,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """The same, once it is ready and no model prepares anything any more.

    Raises `loading.supervised.SupervisorEndedError` if it does not start.
    """
    with starting_service(settings, settings_file, log, variables) as service:
        while not service.server.is_settled():
            time.sleep(_LOOK_S)
        yield service
