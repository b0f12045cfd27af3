"""The processes of the models are found, told apart and judged by what the kernel says."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path

import psutil
import pytest
from child_process import child, next_line
from fake_stub import fake_stub, status_of

from card.serving.supervision.policy import ProcessState
from card.serving.supervision.server import TritonProcess
from card.serving.supervision.stubs import Stub, find_orphans, find_stubs, kill, process_state
from card.serving.supervision.triton_server import Restriction, ServerOptions, TritonInstall


def state_of(stub: Stub) -> ProcessState:
    """Now; as an attribute it would be taken for what it was."""
    return stub.state


def until(status: str, stub: Stub) -> None:
    """Wait for the kernel to get there."""
    while status_of(stub) != status:
        os.sched_yield()


def test_stubs_are_told_apart_by_their_models(tmp_path: Path) -> None:
    with (
        fake_stub(tmp_path, "draft", "one") as draft,
        fake_stub(tmp_path, "target", "two") as target,
    ):
        stubs = find_stubs(os.getpid())
        assert stubs == {"draft": draft, "target": target}
        assert (draft.region, target.region) == ("one", "two")


def test_children_that_serve_no_model_are_passed_over(tmp_path: Path) -> None:
    with child(sys.executable, "-c", "input()"):
        assert find_stubs(os.getpid()) == {}


def test_a_running_a_stopped_and_a_dead_stub_look_different(tmp_path: Path) -> None:
    with fake_stub(tmp_path, "draft") as stub:
        assert state_of(stub) is ProcessState.RUNNING
        stub.process.send_signal(signal.SIGSTOP)
        until(psutil.STATUS_STOPPED, stub)
        assert state_of(stub) is ProcessState.STOPPED
        stub.process.send_signal(signal.SIGKILL)
        until(psutil.STATUS_ZOMBIE, stub)
        assert stub.state is ProcessState.GONE
        assert find_stubs(os.getpid()) == {}
    assert stub.state is ProcessState.GONE


def test_a_stopped_stub_can_be_killed(tmp_path: Path) -> None:
    with fake_stub(tmp_path, "draft") as stub:
        stub.process.send_signal(signal.SIGSTOP)
        until(psutil.STATUS_STOPPED, stub)
        kill([stub.process])
        assert stub.state is ProcessState.GONE
        kill([stub.process])


def test_a_server_that_is_gone_has_no_stubs() -> None:
    with child(sys.executable, "-c", "") as process:
        process.wait()
    assert find_stubs(process.pid) == {}


def test_orphans_are_found_by_their_region(tmp_path: Path) -> None:
    mine = f"mine_{secrets.token_hex(8)}_"
    with (
        fake_stub(tmp_path, "draft", f"{mine}1") as stub,
        fake_stub(tmp_path, "target", "yours_1"),
    ):
        assert find_orphans(mine) == [stub.process]


def test_who_only_looks_at_a_region_is_no_orphan() -> None:
    region = f"mine_{secrets.token_hex(8)}_1"
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    with child(sys.executable, "-c", waiting, region) as bystander:
        next_line(bystander)
        assert find_orphans(region) == []


def test_what_another_user_runs_is_no_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = f"mine_{secrets.token_hex(8)}_1"
    with fake_stub(tmp_path, "draft", region):
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
        assert find_orphans(region) == []


def test_a_server_takes_every_child_along_whatever_its_command_line_says(tmp_path: Path) -> None:
    """A child that is just being executed has none, and one of them outlived its server so."""
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\nsleep 1000 &\nwait\n")
    binary.chmod(0o700)
    restriction = Restriction("name", "value")
    options = ServerOptions(tmp_path, (), restriction, "mine_", 8000, 8001, 8002, "127.0.0.1")
    server = TritonProcess(TritonInstall(binary, tmp_path, ()), options, {})
    observed = psutil.Process(server.pid)
    while not (children := observed.children()):
        os.sched_yield()
    server.kill()
    assert [process_state(child) for child in children] == [ProcessState.GONE]
    assert server.ending == "killed by SIGKILL"
    server.kill()
