"""A service of one's own, what it tells about itself, and where a run keeps what it measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from card.settings import REPOSITORY_ROOT, Settings
from loading.supervised import (
    SUPERVISOR,
    SupervisedServer,
    ready_of,
    reserved_serving,
)

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
        """The supervisor's report under `/ready`. Raises `OSError`."""
        return ready_of(self.server.host, self.settings.serving.health_port)

    def processes(self) -> dict[str, int]:
        """Process ids by name: the supervisor, the server, each model with a process, the guard."""
        health = self.health
        guard = {"guard": int(health["guard"]["pid"])} if health["guard"] else {}
        models = {name: int(model["pid"] or 0) for name, model in health["models"].items()}
        own = {"supervisor": self.server.process.pid, "tritonserver": health["server_pid"]}
        return own | models | guard


@contextlib.contextmanager
def starting_service(
    settings: Settings,
    settings_file: Path | None,
    log: Path,
    variables: Mapping[str, str] | None = None,
    command: Sequence[str | Path] = SUPERVISOR,
) -> Iterator[Service]:
    """Start a service on free ports and stop it at the end. `variables` are added to its
    environment."""
    with reserved_serving(settings.serving.address) as ports, log.open("wb") as output:
        serving = settings.serving.model_copy(update=ports)
        server = SupervisedServer(
            serving,
            settings_file=settings_file,
            variables={"CARD_SERVING__DRAIN_S": "1", **(variables or {})},
            command=command,
        )
        server.start(output)
        try:
            yield Service(settings.model_copy(update={"serving": serving}), server)
        finally:
            server.stop()
            server.wait()


@contextlib.contextmanager
def running_service(
    settings: Settings,
    settings_file: Path | None,
    log: Path,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """The same, once it is ready and no model prepares anything any more.

    Raises `loading.supervised.ProcessEndedError` if it does not start.
    """
    with starting_service(settings, settings_file, log, variables) as service:
        while not service.server.is_settled():
            time.sleep(_LOOK_S)
        yield service


def results_folder(given: Path | None, kind: str) -> Path:
    """The folder `given`, else `build/KIND/TIME`; it exists. Raises `typer.BadParameter`."""
    stamp = datetime.now().strftime("%Y-%m-%dT%H%M%S")
    folder = given or REPOSITORY_ROOT / "build" / kind / stamp
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{folder} cannot be made: {error.strerror}"
        raise typer.BadParameter(reason, param_hint="'--output'") from error
    return folder
