"""The gateway and the guard listen on IPv4, on IPv6 or on both."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from loading.supervised import reserved_ports

START_S = 60.0
BOTH = ["127.0.0.1", "::1"]


def connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize(
    ("package", "host", "heard"),
    [
        ("card_gateway", "::", BOTH),
        ("card_gateway", "[::1]", BOTH[1:]),
        ("card_guard", "::", BOTH),
    ],
)
def test_door_listens_on_the_addresses_that_its_host_names(
    package: str, host: str, heard: list[str]
) -> None:
    with reserved_ports(1) as (port,):
        command = [sys.executable, "-m", package, f"--port={port}", f"--host={host}"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not any(connects(one, port) for one in heard):
                assert process.poll() is None
            assert [one for one in BOTH if connects(one, port)] == heard
        finally:
            process.terminate()
            process.wait(START_S)
