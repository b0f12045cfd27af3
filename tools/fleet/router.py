"""SGLang's model gateway as a child process: it chooses the replica of each request."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loading.supervised import open_local, spawned

HEALTH_S = 1
"""A replica that does not answer `/health` is left within this time and the one below."""
PROBE_S = 2
CACHE_THRESHOLD = 0.1
"""Share of a request's text that must be known at a replica for the request to go there. The router
knows what was asked, not what was answered: a second turn is mostly a long answer that it has not
seen. The router's own default, 0.3, moves such turns."""
_ANSWER_S = 2.0
_DRAIN_S = 30


class RouterEndedError(RuntimeError):
    """The router has ended by itself; its log says why."""


@dataclass
class Router:
    """The program that made it must `stop` it; it also ends when that program dies.

    replicas      URLs of OpenAI's interfaces, without paths
    policy        as the router calls it: cache_aware, round_robin, ...
    metrics_port  of its own metrics
    """

    program: Path
    replicas: Sequence[str]
    port: int
    metrics_port: int
    log: Path
    policy: str = "cache_aware"
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        return [
            *(str(self.program), "launch", "--host=127.0.0.1", f"--port={self.port}"),
            *("--worker-urls", *self.replicas),
            f"--policy={self.policy}",
            f"--cache-threshold={CACHE_THRESHOLD}",
            *("--prometheus-host=127.0.0.1", f"--prometheus-port={self.metrics_port}"),
            *(f"--health-check-interval-secs={HEALTH_S}", f"--health-check-timeout-secs={PROBE_S}"),
            *("--health-failure-threshold=1", "--health-success-threshold=1"),
            # A replica that comes back takes part again.
            "--no-remove-unhealthy-workers",
            "--worker-startup-check-interval=1",
            f"--shutdown-grace-period-secs={_DRAIN_S}",
            "--log-level=warn",
        ]

    def start(self) -> None:
        """Start it, from the main thread."""
        with self.log.open("ab") as output:
            # It must reach this machine's replicas past a proxy of the environment.
            past_proxies = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            self._process = spawned(self.command, output, past_proxies)

    def is_ready(self) -> bool:
        """Whether it sends requests to every replica. Raises `RouterEndedError`."""
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

    def check_alive(self) -> None:
        """Raises `RouterEndedError` if it has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise RouterEndedError(f"the router ended with exit code {code}")

    def stop(self) -> None:
        """Let open answers finish, then end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            self._process.wait()
