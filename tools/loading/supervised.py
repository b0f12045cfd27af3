"""A supervisor as a child process, for programs that need a server for a while."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from card.serving.addresses import bracketed, reachable
from card.serving.child import bound
from card.settings import ServingSettings

_ANSWER_S = 2.0
_LAST_LINES = 20
SUPERVISOR = (sys.executable, "-m", "card.serving.supervisor")
_COMPLAINT = re.compile('level(=|": ")(warning|error|critical)')


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


_PAST_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_local(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """The answer, as of `urllib.request.urlopen`. Raises `OSError`, for an answer that is an error
    its subclass `HTTPError`."""
    return cast(http.client.HTTPResponse, _PAST_PROXIES.open(request, timeout=timeout_s))


@contextmanager
def reserved_serving(address: str = "127.0.0.1") -> Iterator[dict[str, int]]:
    """A port for each of the fields `ServingSettings.ports`, as of `reserved_ports`."""
    fields = ServingSettings().ports
    with reserved_ports(len(fields), address) as ports:
        yield dict(zip(fields, ports, strict=True))


def spawned(
    command: Sequence[str], output: IO[bytes] | None, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A child process out of reach of a Ctrl-C at the terminal, which gets SIGTERM when this
    program dies. Call it from the main thread. Its log goes to `output`, or to standard error;
    `variables` are added to its environment."""
    return subprocess.Popen(
        bound(signal.SIGTERM, command),
        env=os.environ | dict(variables or {}),
        stdin=subprocess.DEVNULL,
        stdout=output or sys.stderr,
        stderr=output or sys.stderr,
        start_new_session=True,
    )


def says_ok(url: str) -> bool:
    """Whether the answer is 200."""
    try:
        with open_local(url, _ANSWER_S) as answer:
            return bool(answer.status == http.client.OK)
    except OSError:  # not bound yet, or an answer that says no
        return False


def readiness(url: str) -> dict[str, Any] | None:
    """What a supervisor says of its models, once it says that it is ready; `url` is that of
    `/ready`."""
    try:
        with open_local(url, _ANSWER_S) as answer:
            said: dict[str, Any] = json.load(answer)
    except OSError:  # not bound yet, or an answer that says no
        return None
    return said


def is_settled(ready: Mapping[str, Any] | None) -> bool:
    """Whether a supervisor with this `readiness` is ready and no model prepares anything any more,
    so that requests have the processor to themselves."""
    return ready is not None and all(model["loading"] is None for model in ready["models"].values())


def last_words(log: IO[bytes]) -> str:
    """Of a supervisor that did not start: its error lines, or the end of its log without any."""
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


class SupervisorEndedError(RuntimeError):
    """The supervisor has ended with exit code `code`: 2 when the machine or the settings lack
    something, which its last lines on standard error say."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the supervisor ended with exit code {code}")
        self.code = code


class SupervisedServer:
    """Starts a supervisor and with it a server; the program that made it must `stop` it.

    It is out of reach of a Ctrl-C at the terminal, and stops by itself, cleanly, when the program
    dies without having stopped it.
    """

    def __init__(
        self,
        serving: ServingSettings,
        *,
        settings_file: Path | None = None,
        variables: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        command: Sequence[str | Path] = SUPERVISOR,
    ) -> None:
        """Start it, from the main thread.

        The ports of `serving` win over those of the file; `variables` are added to the environment
        (`CARD_SERVING__DRAIN_S=5`). All logs go to `output`, or to standard error.
        """
        file = [] if settings_file is None else [f"--settings={settings_file}"]
        ports = {f"CARD_SERVING__{name.upper()}": str(port) for name, port in serving.ports.items()}
        self.host = bracketed(reachable(serving.address))
        """Where programs on this machine reach the server, as it stands in front of a port."""
        self._ready_url = f"http://{self.host}:{serving.health_port}/ready"
        self.process = spawned([*map(str, command), *file], output, ports | dict(variables or {}))

    def is_ready(self) -> bool:
        """Whether a request now would be answered. Raises `SupervisorEndedError`."""
        return self._readiness() is not None

    def is_settled(self) -> bool:
        """As the function of that name says. Raises `SupervisorEndedError`."""
        return is_settled(self._readiness())

    def _readiness(self) -> dict[str, Any] | None:
        self.check_alive()
        return readiness(self._ready_url)

    def check_alive(self) -> None:
        """Raises `SupervisorEndedError` if the supervisor has ended."""
        code = self.process.poll()
        if code is not None:
            raise SupervisorEndedError(code)

    def stop(self) -> None:
        """Let open streams finish, then end; a second call cuts them off."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
