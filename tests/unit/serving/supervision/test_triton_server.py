"""The server of the wheel or the container: found, started, and believed only with its key."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from card.serving.supervision.repository import Repository, RepositoryError
from card.serving.triton_server import (
    TritonNotFoundError,
    find_triton,
    wheel_install,
)


@pytest.fixture
def container(tmp_path: Path) -> Path:
    root = tmp_path / "opt"
    for name in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    return root


def test_the_wheels_server_refuses_numpy_2_and_a_containers_takes_it(
    container: Path, tmp_path: Path
) -> None:
    with pytest.raises(TritonNotFoundError, match=r"NumPy 2\.1\.0"):
        wheel_install(tmp_path, numpy="2.1.0")
    assert find_triton(tmp_path, system_root=container).binary == container / "bin/tritonserver"


def test_a_container_without_the_python_backend_is_refused(container: Path, tmp_path: Path) -> None:
    stub = container / "backends/python/triton_python_backend_stub"
    stub.unlink()
    with pytest.raises(TritonNotFoundError, match=str(stub)):
        find_triton(tmp_path, system_root=container)


def named(binary: Path) -> str:
    with pytest.raises(TritonNotFoundError) as caught:
        find_triton(Path("/unused"), binary)
    return str(caught.value)


def test_a_named_server_that_is_none_is_refused_by_field_and_value(container: Path) -> None:
    binary = container / "bin/tritonserver"
    for wrong in (Path("/nowhere"), container, binary):  # the last one cannot be executed yet
        message = named(wrong)
        assert message.startswith(f"serving.tritonserver is {wrong}: it is no file that this user")
        assert "correct it, or leave it out" in message
    binary.chmod(0o755)
    assert find_triton(Path("/unused"), binary).binary == binary
    other = container / "bin/tritonserver-debug"
    binary.rename(other)
    assert find_triton(Path("/unused"), other).binary == other, (
        "the one that is named, whatever its name"
    )
    other.rename(binary)
    stub = container / "backends/python/triton_python_backend_stub"
    stub.unlink()
    assert named(binary).startswith(f"serving.tritonserver is {binary}: {stub} is missing; ")


def test_no_server_at_all_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TritonNotFoundError, match="run scripts/setup"):
        find_triton(tmp_path, system_root=tmp_path / "nowhere")


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


def test_nothing_is_believed_of_another_server_that_has_the_port(port: int) -> None:
    """It may be just such a service, with all models ready."""
    foreign = Repository("127.0.0.1", port, {"card-supervisor": "another secret"})
    assert foreign.is_ready("card")
    with pytest.raises(RepositoryError, match="did not list its models: restricted"):
        foreign.states()


@pytest.mark.parametrize("listed", ["<html>", {"error": "none"}, [7], [{"model": "card"}]])
def test_a_server_that_lists_no_models_is_not_ours(
    port: int, monkeypatch: pytest.MonkeyPatch, listed: object
) -> None:
    monkeypatch.setattr(Triton, "loaded", listed)
    with pytest.raises(RepositoryError, match="what the server lists are no models"):
        Repository("127.0.0.1", port, KEY).states()
