"""What the supervisor hears from a server: from its own, and from another that has its port."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from card.serving.supervision.repository import Repository, RepositoryError

KEY = {"card-supervisor": "secret"}


class Triton(BaseHTTPRequestHandler):
    """Every model is ready for everybody; who lists them must know the header."""

    loaded = ({"name": "card", "version": "1", "state": "READY"}, {"name": "spare"})

    def do_GET(self) -> None:
        self._answer(200, {})

    def do_POST(self) -> None:
        own = self.headers.get("card-supervisor") == KEY["card-supervisor"]
        self._answer(*((200, self.loaded) if own else (403, {"error": "restricted"})))

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_server_serves_what_it_lists_as_ready(port: int) -> None:
    own = Repository("127.0.0.1", port, KEY)
    assert own.serves(["card"])
    assert not own.serves(["card", "spare"])
    assert not own.serves(["card", "draft"])
    assert (own.is_unloaded("card"), own.is_unloaded("spare")) == (False, True)


def test_nothing_is_believed_of_another_server_that_has_the_port(port: int) -> None:
    """It may be just such a service, with all models ready."""
    foreign = Repository("127.0.0.1", port, {"card-supervisor": "another secret"})
    assert foreign.is_ready("card")
    with pytest.raises(RepositoryError, match="did not list its models: restricted"):
        foreign.serves(["card"])


@pytest.mark.parametrize("listed", ["<html>", {"error": "none"}, [7], [{"model": "card"}]])
def test_a_server_that_lists_no_models_is_not_ours(
    port: int, monkeypatch: pytest.MonkeyPatch, listed: object
) -> None:
    monkeypatch.setattr(Triton, "loaded", listed)
    with pytest.raises(RepositoryError, match="what the server lists are no models"):
        Repository("127.0.0.1", port, KEY).serves(["card"])
