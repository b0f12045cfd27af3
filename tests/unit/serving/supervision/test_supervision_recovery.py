"""One model's recovery, and what the supervisor hears from a server meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fake_stub import fake_stub
from told_clock import ToldClock

from card.serving.supervision.processes import REGIONS, Stub
from card.serving.supervision.recovery import (
    BeyondReloadError,
    RecoveryError,
    reload_model,
)
from card.serving.supervision.repository import Repository, RepositoryError
from card.serving.supervision.watch import ProcessState

LOOK_S = 0.1
"""What passes on the clock of a test with each look."""


class FakeServer:
    def __init__(self, clock: ToldClock) -> None:
        self.state = ProcessState.RUNNING
        self.known: Stub | None = None
        self.failed_loads: list[str] = []
        self.hears = threading.Event()
        """Set when it has been told that a load has failed."""
        self._clock = clock

    def stub(self, model: str) -> Stub | None:
        self._clock.now_s += LOOK_S
        return self.known

    def fail_load(self, model: str) -> None:
        self.failed_loads.append(model)
        self.hears.set()


class FakeRepository:
    """Writes down what is asked of it, and how the old process was when it was asked."""

    def __init__(self, old: Stub | None = None) -> None:
        self.clock = ToldClock()
        self.calls: list[tuple[str, str]] = []
        self.states: list[ProcessState] = []
        self.refusal: str | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.open_looks = 0
        """How often the unloaded model is still seen to have open requests."""
        self._old = old

    def unload(self, model: str, timeout_s: float) -> None:
        self._note("unload", model)

    def is_unloaded(self, model: str) -> bool:
        self._note("look at", model)
        self.clock.now_s += LOOK_S
        self.open_looks -= 1
        return self.open_looks < 0

    def load(self, model: str, timeout_s: float) -> None:
        self._note("load", model)
        self.answers.wait()
        if self.refusal is not None:
            raise RepositoryError(self.refusal)

    def _note(self, verb: str, model: str) -> None:
        self.calls.append((verb, model))
        if self._old is not None:
            self.states.append(self._old.state)


class Recovery:
    """Runs `reload_model` against fakes."""

    def __init__(self, repository: FakeRepository, well_after: int = 0) -> None:
        self.repository = repository
        self.server = FakeServer(repository.clock)
        self.looks_left = well_after

    def run(
        self, dead: Stub | None = None, timeout_s: float = 5.0, must_let_go: bool = False
    ) -> None:
        reload_model(
            "draft",
            dead,
            self.server,  # type: ignore[arg-type]
            self.repository,  # type: ignore[arg-type]
            self._is_well,
            timeout_s,
            must_let_go=must_let_go,
            clock=self.repository.clock,
        )

    def _is_well(self) -> bool:
        self.repository.clock.now_s += LOOK_S
        self.looks_left -= 1
        return self.looks_left < 0


@pytest.mark.parametrize("last", [None, signal.SIGSTOP, signal.SIGKILL])
def test_the_old_process_is_dead_before_the_server_is_asked_for_anything(
    tmp_path: Path, last: signal.Signals | None
) -> None:
    region = REGIONS / f"card_test_{os.getpid()}"
    region.write_bytes(b"\0")
    with fake_stub(tmp_path, "draft", region.name) as stub:
        if last is not None:
            os.kill(stub.process.pid, last)
        repository = FakeRepository(stub)
        Recovery(repository).run(stub)
    assert repository.calls == [("unload", "draft"), ("load", "draft")]
    assert repository.states == [ProcessState.GONE, ProcessState.GONE]
    assert not region.exists()


def test_a_model_that_must_let_go_is_loaded_when_no_request_is_open_in_the_old_one() -> None:
    repository = FakeRepository()
    repository.open_looks = 2
    Recovery(repository).run(must_let_go=True)
    looks = [("look at", "draft")] * 3
    assert repository.calls == [("unload", "draft"), *looks, ("load", "draft")]


def test_requests_that_are_lost_with_a_model_are_said() -> None:
    repository = FakeRepository()
    repository.open_looks = 1_000_000
    with pytest.raises(BeyondReloadError, match="requests were open in its process"):
        Recovery(repository).run(must_let_go=True)
    assert ("load", "draft") not in repository.calls


def test_a_process_that_is_paused_while_it_loads_is_killed_before_it_goes_on(
    tmp_path: Path,
) -> None:
    """Triton has given up on it, and would wait for its end."""
    repository = FakeRepository()
    repository.refusal = "Stub process 'draft_0_0' is not healthy"
    repository.answers.clear()
    recovery = Recovery(repository)
    with fake_stub(tmp_path, "draft", "region") as successor:
        recovery.server.known = successor
        os.kill(successor.process.pid, signal.SIGSTOP)

        def refuse_when_it_has_ended() -> None:
            successor.process.wait()
            repository.answers.set()

        waiting = threading.Thread(target=refuse_when_it_has_ended)
        waiting.start()
        with pytest.raises(RecoveryError, match="is not healthy") as lost:
            recovery.run(timeout_s=60)
        waiting.join()
    assert not isinstance(lost.value, BeyondReloadError), "the policy tries again"


def test_a_load_that_triton_does_not_give_up_is_not_waited_for(tmp_path: Path) -> None:
    repository = FakeRepository()
    repository.answers.clear()
    recovery = Recovery(repository)
    with fake_stub(tmp_path, "draft", "region") as successor:
        recovery.server.known = successor
        os.kill(successor.process.pid, signal.SIGKILL)
        with pytest.raises(BeyondReloadError, match="did not survive its loading"):
            recovery.run(timeout_s=60)
    repository.answers.set()
    assert recovery.server.failed_loads == ["draft"]


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


def test_models_have_the_states_that_the_server_lists(port: int) -> None:
    own = Repository("127.0.0.1", port, KEY)
    assert own.states() == {"card": {"READY"}, "spare": {None}}
    assert (own.is_unloaded("card"), own.is_unloaded("spare")) == (False, True)
    assert own.is_unloaded("draft")


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
