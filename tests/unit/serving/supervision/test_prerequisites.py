"""Each missing prerequisite is one clear line."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_pair import pair_settings

from card.serving.prerequisites import (
    check_disk,
    check_numpy,
    check_ports,
    check_shared_memory,
    check_shell_proof,
)
from card.serving.supervisor import unmet_prerequisites
from loading.supervised import reserved_serving


@pytest.fixture
def free_ports() -> Iterator[dict[str, Any]]:
    with reserved_serving() as ports:
        yield ports


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_busy_at_one_address_is_busy_for_all(busy_port: int, address: str) -> None:
    problem = str(check_ports({"--grpc-port": busy_port}, address))
    assert problem.startswith(f"--grpc-port: port {busy_port} is busy")


def test_port_is_free_again_right_after_a_server_ended() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = listener.accept()
            # The side that closes first is the one whose port lingers.
            served.close()
            assert client.recv(1) == b""
    assert check_ports({"--http-port": port}, "127.0.0.1") is None


def test_ports_that_cannot_be_meant_are_refused() -> None:
    for port in (0, -1, 65536):
        assert "choose a port from 1 to 65535" in str(check_ports({"--http-port": port}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    problem = check_ports({"--http-port": port, "--grpc-port": port}, "127.0.0.1")
    assert problem == f"--http-port and --grpc-port are both {port}: choose two different ports"


@pytest.mark.parametrize("check", [check_disk, check_shared_memory])
def test_too_little_room_names_the_folder_and_what_is_needed(
    tmp_path: Path, check: Callable[[Path, int], str | None]
) -> None:
    assert check(tmp_path, 1) is None
    problem = str(check(tmp_path, 1 << 60))
    assert f"{tmp_path} has " in problem
    assert f"{1 << 40} MiB are needed" in problem


def test_a_folder_of_the_settings_is_refused_with_its_field(
    tmp_path: Path, free_ports: dict[str, Any]
) -> None:
    folder = tmp_path / "nowhere"
    settings = pair_settings(cache={"directory": folder}, serving=free_ports)
    (problem,) = unmet_prerequisites(settings)
    assert problem.startswith(f"shared memory {folder} ")
    assert ": set cache.directory to " in problem
    too_large = str(check_shared_memory(tmp_path, 1 << 60, "cache.directory"))
    assert ": set cache.directory to " in too_large


@pytest.mark.parametrize("piece", [" ", "$(id)", ";", "'", "\n", "?", "%", "b"])
def test_a_path_that_a_shell_would_take_apart_is_refused_by_its_field(piece: str) -> None:
    name = f"/var/lib/card_1/a-{piece}.c"
    problem = check_shell_proof(Path(name), "cache.directory") or ""
    assert problem.startswith(f"cache.directory is {name!r}" if piece != "b" else "")
    assert bool(problem) == (piece != "b")
    assert "\n" not in problem


@pytest.mark.parametrize("version", ["2.0.0", "2.3.1", "10.0"])
def test_numpy_2_is_refused_because_it_corrupts_texts(version: str) -> None:
    problem = check_numpy(version)
    assert problem is not None
    assert version in problem
    assert "numpy<2" in problem
    assert check_numpy("1.26.4") is None
