"""`serving.address` of either family, or both, as Triton, the guard and the health port take it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from card.serving.addresses import Relay, bracketed, for_triton_http, reachable
from card.serving.prerequisites import check_ports
from card.serving.triton_server import relayed_ports, wheel_install
from card.settings import ServingSettings, Settings
from loading.supervised import reserved_ports

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


@pytest.mark.parametrize(
    ("address", "reached", "in_front_of_a_port", "triton_http"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "0.0.0.0", "0.0.0.0"),
        ("::1", "::1", "[::1]", "ipv6:::1"),
        ("::", "127.0.0.1", "[::]", "0.0.0.0"),
    ],
)
def test_an_address_is_spelled_as_each_program_takes_it(
    tmp_path: Path, address: str, reached: str, in_front_of_a_port: str, triton_http: str
) -> None:
    assert reachable(address) == reached
    assert bracketed(address) == in_front_of_a_port
    assert for_triton_http(address) == triton_http
    serving = ServingSettings(address=address)
    settings = Settings(serving=serving)
    command = wheel_install(tmp_path).command(settings, tmp_path, ["card"], "a=b", "card_1_")
    assert f"--http-address={triton_http}" in command
    assert f"--metrics-address={triton_http}" in command
    assert f"--grpc-address={in_front_of_a_port}" in command
    both = [serving.http_port, serving.metrics_port]
    assert relayed_ports(serving) == (both if address == "::" else [])


def test_a_port_is_not_relayed_when_triton_arguments_name_its_address() -> None:
    serving = ServingSettings(address="::", triton_arguments=("--http-address=127.0.0.1",))
    assert relayed_ports(serving) == [serving.metrics_port]


def test_a_busy_ipv6_port_is_refused_by_name() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as busy:
        port = busy.getsockname()[1]
        for address in ("::1", "::"):
            assert f"port {port} is busy" in str(check_ports({"--http-port": port}, address))
        assert check_ports({"--http-port": port}, "127.0.0.1") is None


def test_ipv6_connections_reach_the_ipv4_port_when_they_are_relayed() -> None:
    with reserved_ports(1) as (port,), socket.create_server(("127.0.0.1", port)) as server:
        relay = Relay([port])

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while piece := connection.recv(1 << 16):
                    connection.sendall(piece)
            ended.set()

        ended = threading.Event()
        threading.Thread(target=echo, daemon=True).start()
        sent = b"x" * (1 << 20)
        with socket.create_connection(("::1", port), 60) as client:
            threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
            heard = b""
            while len(heard) < len(sent):
                heard += client.recv(1 << 16)
        assert heard == sent
        assert ended.wait(60), "the end of one side is the end of the other"
        relay.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("::1", port), 60)


def test_a_relayed_connection_is_closed_when_no_server_listens() -> None:
    with reserved_ports(1) as (port,):
        relay = Relay([port])
        with socket.create_connection(("::1", port), 60) as client:
            assert client.recv(1) == b""
        relay.close()
