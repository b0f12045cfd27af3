"""Child processes that serve: a supervisor, and the ports and answers of what runs beside it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from card.serving.addresses import bracketed, reachable
from card.serving.child import bound
from card.settings import ServingSettings

SUPERVISOR = (sys.executable, "-m", "card.serving.supervisor")
_ANSWER_S, _PAGE_S = 2.0, 10.0
_LAST_LINES = 20
_COMPLAINT = re.compile('level(=|": ")(warning|error|critical)')
_PAST_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def reserved_ports(count: int, address: str = "127.0.0.1") -> Iterator[list[int]]:
    """Ports of `address`, all different, that no other program gets while this lasts.

    The system hands out no port that a socket is bound to; yet a server that sets SO_REUSEADDR may
    listen on it. Raises `OSError` for an address that is not this machine's.
    """
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        holders = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, 0))
        yield [int(holder.getsockname()[1]) for holder in holders]


@contextmanager
def reserved_serving(address: str = "127.0.0.1") -> Iterator[dict[str, int]]:
    """A port for each of the fields `ServingSettings.ports`, as of `reserved_ports`."""
    fields = ServingSettings().ports
    with reserved_ports(len(fields), address) as ports:
        yield dict(zip(fields, ports, strict=True))


def open_local(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """The answer, as of `urllib.request.urlopen`. Raises `OSError`, for an answer that is an error
    its subclass `HTTPError`."""
    return cast(http.client.HTTPResponse, _PAST_PROXIES.open(request, timeout=timeout_s))


def ready_of(host: str, health_port: int) -> dict[str, Any]:
    """A supervisor's report under `/ready`, ready or not. Raises `OSError`."""
    try:
        with open_local(f"http://{host}:{health_port}/ready", _PAGE_S) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as answer:
        return dict(json.load(answer))


def is_settled(host: str, health_port: int) -> bool:
    """Whether a supervisor is ready and no model prepares anything any more, so that requests have
    the processor to themselves."""
    try:
        ready = ready_of(host, health_port)
    except OSError:  # not bound yet
        return False
    is_ready = ready["state"] in ("ready", "degraded")
    return is_ready and all(model["loading"] is None for model in ready["models"].values())


def last_words(log: IO[bytes]) -> str:
    """The error lines of a supervisor that did not start; without any, the end of its log."""
    lines = _lines(log)
    errors = [line for line in lines if line.startswith("error: ")]
    return "\n".join(errors or lines[-_LAST_LINES:])


def complaints(log: IO[bytes]) -> str:
    """The last warnings and errors of a supervisor and its child processes."""
    told = [line for line in _lines(log) if _COMPLAINT.search(line)]
    return "\n".join(told[-_LAST_LINES:])


def _lines(log: IO[bytes]) -> list[str]:
    log.seek(0)
    return log.read().decode(errors="replace").splitlines()


class ProcessEndedError(RuntimeError):
    """A child process has ended by itself with exit code `code`: 2 when the machine or the settings
    lack something, which its last lines on standard error say."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} ended with exit code {code}")
        self.code = code


class ChildProcess:
    """A program that serves; the program that starts it must `stop` it.

    It is out of reach of a Ctrl-C at the terminal, and gets SIGTERM when the program that started
    it dies without having stopped it. Start it from the main thread.

    name  what errors call it
    url   answers 200 while it is ready
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        name: str,
        url: str,
        command: Sequence[str | Path],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables` are added to the environment."""
        self.name, self._ready_url, self.command = name, url, list(map(str, command))
        self.variables = dict(variables or {})

    def start(self, output: IO[bytes] | None = None) -> None:
        """Start it, also again after its end. Its log goes to `output`, or to standard error."""
        self.process = subprocess.Popen(
            bound(signal.SIGTERM, self.command),
            env=os.environ | self.variables,
            stdin=subprocess.DEVNULL,
            stdout=output or sys.stderr,
            stderr=output or sys.stderr,
            start_new_session=True,
        )

    def is_ready(self) -> bool:
        """Whether a request now would be answered. Raises `ProcessEndedError`."""
        self.check_alive()
        with suppress(OSError), open_local(self._ready_url, _ANSWER_S) as answer:
            return bool(answer.status == http.client.OK)
        return False  # not bound yet, or an answer that says no

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return hasattr(self, "process") and self.process.poll() is None

    def check_alive(self) -> None:
        """Raises `ProcessEndedError` if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise ProcessEndedError(self.name, code)

    def stop(self) -> None:
        """Let open streams finish, then end; a second call cuts them off."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for its end."""
        if hasattr(self, "process"):
            self.process.wait(timeout_s)


class SupervisedServer(ChildProcess):
    """A supervisor and with it a server."""

    def __init__(
        self,
        serving: ServingSettings,
        *,
        settings_file: Path | None = None,
        variables: Mapping[str, str] | None = None,
        command: Sequence[str | Path] = SUPERVISOR,
    ) -> None:
        """The ports of `serving` win over those of the file; `variables` are like
        `CARD_SERVING__DRAIN_S=5`."""
        file = [] if settings_file is None else [f"--settings={settings_file}"]
        ports = {f"CARD_SERVING__{name.upper()}": str(port) for name, port in serving.ports.items()}
        self.host = bracketed(reachable(serving.address))
        """Where programs on this machine reach the server, as it stands in front of a port."""
        self._health_port = serving.health_port
        url = f"http://{self.host}:{serving.health_port}/ready"
        super().__init__("the supervisor", url, [*command, *file], ports | dict(variables or {}))

    def is_settled(self) -> bool:
        """As the function of that name says. Raises `ProcessEndedError`."""
        self.check_alive()
        return is_settled(self.host, self._health_port)
