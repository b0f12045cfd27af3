"""Triton's model control and readiness, over its HTTP endpoint on this machine."""

from __future__ import annotations

import http.client
import json
import threading
import time

from card.serving.addresses import reachable
from card.serving.supervision.states import ENSEMBLE

_PROBE_TIMEOUT_S = 2.0
_PROBE_PERIOD_S = 0.25


class RepositoryError(RuntimeError):
    """The server refused a request or did not answer; the message names the request."""


class Repository:
    """Loads and unloads models of one server; `headers` open the restricted API."""

    def __init__(self, address: str, port: int, headers: dict[str, str]) -> None:
        """`address` is the one that the server binds."""
        self._host, self._port = reachable(address), port
        self._headers = headers

    def is_ready(self, model: str) -> bool:
        """Whether the server would take a request to `model` now. Raises if it does not answer."""
        status, _ = self._call("GET", f"/v2/models/{model}/ready", _PROBE_TIMEOUT_S)
        return status == http.client.OK

    def states(self) -> dict[str, set[str | None]]:
        """The states of each model's versions; None: a version has no state yet. Raises if they are
        unknown, for example if another server, which ignores `headers`, has the port."""
        status, body = self._call("POST", "/v2/repository/index", _PROBE_TIMEOUT_S)
        if status != http.client.OK:
            raise RepositoryError(f"the server did not list its models: {_error(body)}")
        states: dict[str, set[str | None]] = {}
        try:
            for entry in json.loads(body):
                states.setdefault(entry["name"], set()).add(entry.get("state"))
        except (ValueError, KeyError, TypeError) as error:
            raise RepositoryError("what the server lists are no models") from error
        return states

    def is_unloaded(self, model: str) -> bool:
        """Whether nothing of `model` is left, not even open requests. Raises if unknown."""
        return self.states().get(model, set()) <= {None, "UNAVAILABLE"}

    def load(self, model: str, timeout_s: float) -> None:
        """Load `model` and wait for it."""
        self._control(model, "load", timeout_s)

    def unload(self, model: str, timeout_s: float) -> None:
        """Retire the running instance of `model` and those that depend on it.

        The server answers at once. The instance goes when its open requests have ended, which for
        a dead process may be never; a new one can be loaded meanwhile.
        """
        self._control(model, "unload", timeout_s)

    def _control(self, model: str, verb: str, timeout_s: float) -> None:
        status, body = self._call("POST", f"/v2/repository/models/{model}/{verb}", timeout_s)
        if status != http.client.OK:
            raise RepositoryError(f"the server did not {verb} {model}: {_error(body)}")

    def _call(self, method: str, path: str, timeout_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        body = "{}" if method == "POST" else None
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise RepositoryError(f"no answer to {method} {path}: {error!r}") from error
        finally:
            connection.close()


class Probe:
    """The server's last answer about the ensemble. A thread asks repeatedly, so that a hanging
    server blocks only this thread and not the watch over the processes."""

    def __init__(self, repository: Repository) -> None:
        self.ready, self.listens = False, True
        """Whether the server is ready and whether it accepts connections, by the last answer."""
        self._repository = repository
        self._answered_s = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def silence_s(self) -> float:
        """Seconds since the last answer of any kind."""
        return time.monotonic() - self._answered_s

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self.ready = self._repository.is_ready(ENSEMBLE)
                self._answered_s = time.monotonic()
                self.listens = True
            except RepositoryError as error:
                self.ready = False
                self.listens = not isinstance(error.__cause__, ConnectionRefusedError)
            if self._closed.wait(_PROBE_PERIOD_S):
                return


def _error(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
