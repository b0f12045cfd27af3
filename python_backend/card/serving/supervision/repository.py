"""Triton's model control and readiness, over its HTTP endpoint on this machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable

PROBE_TIMEOUT_S = 2.0


def reachable(address: str) -> str:
    """Where a program on this machine reaches what binds `address`."""
    return "127.0.0.1" if address == "0.0.0.0" else address


class RepositoryError(RuntimeError):
    """The server refused or did not answer; the message says to what."""


class Repository:
    """Loads and unloads models of one server; `headers` open the restricted API."""

    def __init__(self, address: str, port: int, headers: dict[str, str]) -> None:
        """`address` is the one that the server binds."""
        self._host = reachable(address)
        self._port = port
        self._headers = headers

    def is_ready(self, model: str) -> bool:
        """Whether the server would take a request to `model` now. Raises if it does not answer."""
        status, _ = self._call("GET", f"/v2/models/{model}/ready", PROBE_TIMEOUT_S)
        return status == http.client.OK

    def serves(self, models: Iterable[str]) -> bool:
        """Whether all of `models` are loaded. Raises if that is unknown, as where another server,
        to which `headers` mean nothing, has the port."""
        ready = {model for model, state in self._states() if state == "READY"}
        return ready.issuperset(models)

    def is_unloaded(self, model: str) -> bool:
        """Whether nothing of `model` is left, not even open requests. Raises if unknown."""
        states = [state for name, state in self._states() if name == model]
        return all(state in (None, "UNAVAILABLE") for state in states)

    def load(self, model: str, timeout_s: float) -> None:
        """Load `model` and wait for it."""
        self._control(model, "load", timeout_s)

    def unload(self, model: str, timeout_s: float) -> None:
        """Retire the running instance of `model` and those that depend on it.

        The server answers at once. The instance goes when its open requests have ended, which for
        a dead process may be never; a new one can be loaded meanwhile.
        """
        self._control(model, "unload", timeout_s)

    def _states(self) -> list[tuple[str, str | None]]:
        """Each version of each model, and its state once it has one."""
        status, body = self._call("POST", "/v2/repository/index", PROBE_TIMEOUT_S)
        if status != http.client.OK:
            raise RepositoryError(f"the server did not list its models: {_error(body)}")
        try:
            return [(entry["name"], entry.get("state")) for entry in json.loads(body)]
        except (ValueError, KeyError, TypeError) as error:
            raise RepositoryError("what the server lists are no models") from error

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


def _error(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
