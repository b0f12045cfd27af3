"""`serving.address` of either family, as Triton, the guard and the health port take it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from card.serving.addresses import bracketed, for_triton_http, reachable
from card.serving.prerequisites import check_ports
from card.serving.triton_server import wheel_install
from card.settings import ServingSettings, Settings

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


@pytest.mark.parametrize(
    ("address", "reached", "in_front_of_a_port", "triton_http"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "0.0.0.0", "0.0.0.0"),
        ("::1", "::1", "[::1]", "ipv6:::1"),
        ("::", "::1", "[::]", "ipv6:::"),
    ],
)
def test_an_address_is_spelled_as_each_program_takes_it(
    tmp_path: Path, address: str, reached: str, in_front_of_a_port: str, triton_http: str
) -> None:
    assert reachable(address) == reached
    assert bracketed(address) == in_front_of_a_port
    assert for_triton_http(address) == triton_http
    settings = Settings(serving=ServingSettings(address=address))
    command = wheel_install(tmp_path).command(settings, tmp_path, ["card"], "a=b", "card_1_")
    assert f"--http-address={triton_http}" in command
    assert f"--metrics-address={triton_http}" in command
    assert f"--grpc-address={in_front_of_a_port}" in command


def test_a_busy_ipv6_port_is_refused_by_name() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as busy:
        port = busy.getsockname()[1]
        for address in ("::1", "::"):
            assert f"port {port} is busy" in str(check_ports({"--http-port": port}, address))
        assert check_ports({"--http-port": port}, "127.0.0.1") is None
