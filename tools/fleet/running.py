"""Replicas and their router as child processes: start, wait until all are ready, stop."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from card.settings import REPOSITORY_ROOT
from environments import installed
from loading.supervised import ChildProcess, is_settled, open_local

PORTS = ("http", "grpc", "metrics", "health", "openai")
LOOK_S = 0.1
RESTART_S = 5.0
KEPT = "CARD_CACHE__KEPT_TOKENS"
KEPT_TOKENS = 32768
"""Tokens of earlier texts that a replica keeps, unless the settings or the environment say: at 23
KiB a token of the chat target, as many conversations as a fleet on one machine is tried with."""
CACHE_THRESHOLD = 0.1
"""Share of a request's text that must be known at a replica for the request to go there. The router
knows what was asked, not what was answered: a second turn is mostly a long answer that it has not
seen. The router's own default, 0.3, moves such turns."""
_HEALTH_S, _PROBE_S = 1, 2
"""A replica that does not answer `/health` is left within both times together."""
_DRAIN_S = 30
_ANSWER_S = 2.0


class ReplicaProcess(ChildProcess):
    """A server and OpenAI's interface in front of it.

    ports  of each of `PORTS`
    log    file of its output
    """

    def __init__(
        self,
        ports: dict[str, int],
        log: Path,
        settings: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """settings  another settings file; None: built in"""
        self.ports, self._log = ports, log
        self.url = f"http://127.0.0.1:{ports['openai']}"
        """The URL of OpenAI's interface, without a path."""
        options = [f"--{name}-port={port}" for name, port in ports.items()]
        options += [] if settings is None else [f"--settings={settings}"]
        command = [sys.executable, "-m", "demonstration", "--openai", *options]
        known = {"PYTHONPATH": str(REPOSITORY_ROOT / "tools"), **(variables or {})}
        super().__init__(f"the replica of {self.url}", f"{self.url}/health", command, known)

    def start(self, output: IO[bytes] | None = None) -> None:
        with self._log.open("ab") as log:
            super().start(output or log)
        self._started_s = time.monotonic()

    def starts_again_if_lost(self) -> bool:
        """Start it if it has ended with an error or was killed; a drained one stays away. Returns
        whether it has; a replica starts at most once in `RESTART_S`."""
        lost = self.process.poll() not in (None, 0)
        if not lost or time.monotonic() - self._started_s < RESTART_S:
            return False
        self.start()
        return True

    def is_settled(self) -> bool:
        """Whether no model of it prepares anything any more: for measurements."""
        return is_settled("127.0.0.1", self.ports["health"])

    def kill(self) -> float:
        """End all its processes at once, as the loss of a machine does. Returns when, on the clock
        `time.monotonic`, in seconds."""
        first = psutil.Process(self.process.pid)
        for process in (first, *first.children(recursive=True)):  # the first starts nothing again
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.wait()
        return time.monotonic()


class Router(ChildProcess):
    """SGLang's model gateway: it chooses the replica of each request.

    replicas  URLs of OpenAI's interfaces, without paths
    policy    as the router calls it: cache_aware, round_robin, ...
    """

    def __init__(
        self, replicas: Sequence[str], port: int, metrics_port: int, log: Path, policy: str
    ) -> None:
        """The router's program is installed first where needed. Raises `EnvironmentFailedError`."""
        self.url, self.replicas, self.policy, self._log = (
            f"http://127.0.0.1:{port}", replicas, policy, log
        )  # fmt: skip
        home, needed = REPOSITORY_ROOT / ".venv-router", "requirements/router.txt"
        program = installed(home, bare=[REPOSITORY_ROOT / needed]).with_name("smg")
        command = [
            *(str(program), "launch", "--host=127.0.0.1", f"--port={port}"),
            *("--worker-urls", *replicas),
            f"--policy={policy}",
            f"--cache-threshold={CACHE_THRESHOLD}",
            *("--prometheus-host=127.0.0.1", f"--prometheus-port={metrics_port}"),
            f"--health-check-interval-secs={_HEALTH_S}",
            f"--health-check-timeout-secs={_PROBE_S}",
            *("--health-failure-threshold=1", "--health-success-threshold=1"),
            # A replica that comes back takes part again.
            "--no-remove-unhealthy-workers",
            "--worker-startup-check-interval=1",
            f"--shutdown-grace-period-secs={_DRAIN_S}",
            "--log-level=warn",
        ]
        # It must reach this machine's replicas past a proxy of the environment.
        past_proxies = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        super().__init__("the router", self.url, command, past_proxies)

    def start(self, output: IO[bytes] | None = None) -> None:
        with self._log.open("ab") as log:
            super().start(output or log)

    def is_ready(self) -> bool:
        """Whether it sends requests to every replica. Raises `ProcessEndedError`."""
        self.check_alive()
        return set(self.healthy()) >= set(self.replicas)

    def healthy(self) -> list[str]:
        """URLs of the replicas that it sends requests to; none while it does not answer."""
        try:
            with open_local(f"{self.url}/workers", _ANSWER_S) as answer:
                workers = json.load(answer)["workers"]
        except (OSError, http.client.HTTPException):
            return []
        return [worker["url"] for worker in workers if worker["is_healthy"]]


@dataclass(frozen=True)
class Fleet:
    replicas: list[ReplicaProcess]
    router: Router

    def restored(self) -> list[int]:
        """Start the lost replicas again, and return their places. Raises `ProcessEndedError`."""
        self.router.check_alive()
        return [place for place, one in enumerate(self.replicas) if one.starts_again_if_lost()]


def fleet_of(
    count: int,
    port: int,
    ports: Sequence[int],
    logs: Path,
    policy: str = "cache_aware",
    settings: Path | None = None,
) -> Fleet:
    """A fleet that has not started: of `ports` each replica takes five and the router's metrics the
    next one. Raises `EnvironmentFailedError`."""
    logs.mkdir(parents=True, exist_ok=True)
    keeps = settings is not None or KEPT in os.environ
    variables = {} if keeps else {KEPT: str(KEPT_TOKENS)}
    free = iter(ports)
    replicas = [
        ReplicaProcess(
            dict(zip(PORTS, itertools.islice(free, len(PORTS)), strict=True)),
            logs / f"replica-{place}.log",
            settings,
            variables,
        )
        for place in range(count)
    ]
    urls = [replica.url for replica in replicas]
    return Fleet(replicas, Router(urls, port, next(free), logs / "router.log", policy))


def await_ready(one: ChildProcess) -> None:
    """Return once it is ready. Raises `ProcessEndedError`."""
    while not one.is_ready():
        time.sleep(LOOK_S)


@contextmanager
def running(fleet: Fleet) -> Iterator[None]:
    """Start the replicas one after the other, then the router; stop all, whatever happens.

    A second replica that loads beside the first would disturb what the first one measures.
    """
    everything = [*fleet.replicas, fleet.router]
    try:
        for one in everything:
            one.start()
            await_ready(one)
        yield
    finally:
        # Open answers finish while the router still passes them on.
        for one in reversed(everything):
            one.stop()
        for one in everything:
            one.wait()
